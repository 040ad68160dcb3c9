"""Reports: self-contained HTML files that open anywhere."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from bottlegan import __version__
from bottlegan.core.files import write_text
from bottlegan.imaging.files import Pixels


@dataclass(frozen=True)
class Table:
    """Rows of text under headings. The first column names the row."""

    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    kind: str = "table"


@dataclass(frozen=True)
class Grid:
    """Rows of pictures under headings, each row with a label."""

    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Pixels]]]
    kind: str = "grid"


@dataclass(frozen=True)
class Drawing:
    """A line drawing, as SVG."""

    title: str
    caption: str
    svg: Markup
    kind: str = "drawing"


def write_report(path: Path, title: str, lead: str, sections: Sequence[Table | Grid | Drawing]) -> None:
    """Write a self-contained HTML page with a `lead` paragraph and the `sections` in order."""
    environment = Environment(
        loader=PackageLoader("bottlegan.quality"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("report.html.j2")
    text = page.render(title=title, lead=lead, sections=sections, to_uri=to_uri, version=__version__)
    write_text(path, text)


def paint(grid: Grid, side: int) -> Pixels:
    """Return a grid as one wide picture without text: squares of `side` pixels, one column per row of the grid."""
    cell = side + max(2, side // 40)
    columns = [pictures for _, pictures in grid.rows]
    sheet = Image.new("RGB", (cell * len(columns), cell * len(columns[0])), "white")
    for x, pictures in enumerate(columns):
        for y, levels in enumerate(pictures):
            sheet.paste(Image.fromarray(levels).resize((side, side), Image.Resampling.LANCZOS), (cell * x, cell * y))
    return np.asarray(sheet)


def to_uri(levels: Pixels) -> str:
    """Return RGB levels (H, W, 3) as a data URI for an `src` attribute."""
    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, format="WEBP", quality=90)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
