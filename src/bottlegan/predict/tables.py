"""Results as tables: areas of classes, or scores of patches."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bottlegan.core.files import write_text

Cell = str | int | float
SQUARE_MILLIMETER = 1e6  # square micrometers


def write_areas(path: Path, counts: Mapping[str, Mapping[str, int]], mpp: tuple[float, float] | None) -> None:
    """Write the area of each class in each image or slide.

    Args:
        path: A file that ends in .csv.
        counts: Number of pixels of each class, by the name of the image.
        mpp: Micrometers per pixel, across and down. If unknown, the table has no square millimeters.
    """
    rows: list[list[Cell]] = []
    for image, pixels_by_class in counts.items():
        total = max(1, sum(pixels_by_class.values()))
        for name, pixels in pixels_by_class.items():
            area: Cell = "" if mpp is None else round(pixels * mpp[0] * mpp[1] / SQUARE_MILLIMETER, 6)
            rows.append([image, name, pixels, area, round(pixels / total, 6)])
    write_table(path, ["image", "class", "pixels", "mm2", "share"], rows)


def write_scores(
    path: Path,
    names: Sequence[str],
    rows: Iterable[tuple[Sequence[Cell], Sequence[float]]],
    heads: Sequence[str] = ("image",),
) -> None:
    """Write the class of each image or patch, and the probabilities of all classes.

    Args:
        path: A file that ends in .csv.
        names: Names of the classes.
        rows: The cells that identify an image or patch, and the probabilities of its classes.
        heads: Headings of the identifying cells.
    """
    lines = [
        [*key, names[max(range(len(names)), key=shares.__getitem__)], *(round(share, 6) for share in shares)]
        for key, shares in rows
    ]
    write_table(path, [*heads, "class", *names], lines)


def write_table(path: Path, heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Write a table to `path`, whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def name_maps(target: Path, names: Sequence[str]) -> list[Path]:
    """Return the files of probability maps, beside the map of classes `target`."""
    plain = [name.replace(" ", "-") for name in names]
    return [target.with_name(f"{target.stem}_probability_{name}{target.suffix}") for name in plain]
