import base64
import io
from pathlib import Path

import numpy as np
from PIL import Image

from bottlegan.quality.report import Grid, Table, paint, to_uri, write_report


def test_text_is_escaped_and_pictures_are_inside(tmp_path: Path) -> None:
    picture = np.full((4, 5, 3), 200, np.uint8)
    sections = [
        Table("Scores", "Low is good.", ("lab", "MSE"), [("<script>", "0.1")]),
        Grid("Pictures", "Look.", ("", "stained"), [("lab-01", [picture])]),
    ]
    write_report(tmp_path / "report.html", "A & B", "What this is.", sections)
    page = (tmp_path / "report.html").read_text()
    assert "<script>" not in page
    assert "A &amp; B" in page
    assert 'alt="lab-01, stained"' in page
    assert to_uri(picture) in page


def test_a_picture_survives_its_uri() -> None:
    picture = np.full((4, 5, 3), 200, np.uint8)
    _, body = to_uri(picture).split(",")
    decoded = np.asarray(Image.open(io.BytesIO(base64.b64decode(body))).convert("RGB"))
    assert np.abs(decoded.astype(int) - picture).max() <= 2


def test_a_grid_becomes_one_picture() -> None:
    red, blue = (np.full((9, 9, 3), color, np.uint8) for color in ([255, 0, 0], [0, 0, 255]))
    sheet = paint(
        Grid("", "", ("", "a", "b"), [("one", [red, blue]), ("two", [blue, blue]), ("three", [red, red])]), 10
    )
    assert sheet.shape == (24, 36, 3)
    assert [sheet[0, x].tolist() for x in (0, 12, 24)] == [[255, 0, 0], [0, 0, 255], [255, 0, 0]]
    assert sheet[12, 0].tolist() == [0, 0, 255]
    assert sheet[11, 11].tolist() == [255, 255, 255]
