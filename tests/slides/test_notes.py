import json
from pathlib import Path

import numpy as np
import pytest
import tifffile

from bottlegan.slides.notes import list_dicom, read_note

PIXELS = np.zeros((16, 16, 3), np.uint8)
OURS = {"software": "bottlegan 1.0", "style": "lab-3"}


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (json.dumps(OURS), OURS),
        (f"<?xml version='1.0'?><OME><Description>{json.dumps(OURS)}</Description></OME>", OURS),
        (json.dumps({"software": "something else"}), None),
        (json.dumps([OURS]), None),
        ("Aperio Image Library", None),
    ],
)
def test_only_our_own_notes_are_read(text: str, note: object, tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "slide.tiff", PIXELS, description=text, metadata=None)
    assert read_note(tmp_path / "slide.tiff") == note


def test_a_damaged_file_has_no_note(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "slide.tiff", PIXELS, description=json.dumps(OURS), metadata=None)
    (tmp_path / "slide.tiff").write_bytes((tmp_path / "slide.tiff").read_bytes()[:9])
    (tmp_path / "slide.dcm").write_bytes(b"no DICOM")
    assert read_note(tmp_path / "slide.tiff") is None
    assert read_note(tmp_path / "slide.dcm") is None


def test_dicom_files_are_listed_by_name(tmp_path: Path) -> None:
    for name in ("1.dcm", "0.dcm", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in list_dicom(tmp_path)] == ["0.dcm", "1.dcm"]
    assert list_dicom(tmp_path / "0.dcm") == []
