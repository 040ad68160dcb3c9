"""The note in a slide that BottleGAN wrote: JSON on how the slide was made."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import unescape

from bottlegan.core.progress import Json
from bottlegan.slides.tiled import import_tifffile

Note = Mapping[str, Json]


def read_note(path: Path) -> Note | None:
    """Return the note of a TIFF, an OME-TIFF or a folder of DICOM files; None if there is none, or it is unreadable."""
    text = _read_comments(path) if path.is_dir() or path.suffix.lower() == ".dcm" else _read_description(path)
    if text.startswith("<?xml"):
        described = re.search("<Description>(.*?)</Description>", text, re.DOTALL)
        text = unescape(described[1]) if described else ""
    try:
        note = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return note if isinstance(note, dict) and str(note.get("software", "")).startswith("bottlegan") else None


def list_dicom(folder: Path) -> list[Path]:
    """Return the DICOM files in a folder, the finest level first."""
    return sorted(folder.glob("*.dcm")) if folder.is_dir() else []


def _read_description(path: Path) -> str:
    try:
        with import_tifffile().TiffFile(path) as file:
            page: Any = file.pages[0]
            return str(page.description)
    except Exception:  # a damaged file has no note of ours, whatever its reader says
        return ""


def _read_comments(path: Path) -> str:
    files = list_dicom(path) if path.is_dir() else [path]
    try:
        import pydicom  # noqa: PLC0415 - optional, so only asked for when there is DICOM

        return str(pydicom.dcmread(files[0], stop_before_pixels=True).get("ImageComments", ""))
    except Exception:  # a damaged file has no note of ours, whatever its reader says
        return ""
