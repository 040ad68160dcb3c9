"""A normalizer as a coarse table for other software, with its origin and its measured error."""

from typing import TYPE_CHECKING

import numpy as np

from bottlegan import __version__
from bottlegan.colormap.cube import Cube, Deviation, Floats, measure, sample_grid
from bottlegan.normalize.record import forget_diagnosis

if TYPE_CHECKING:
    from bottlegan.models.freeze import Direction
    from bottlegan.normalize.normalizer import Normalizer


def make_cube(
    normalizer: "Normalizer", size: int, direction: "Direction", digest: str | None = None
) -> tuple[Cube, tuple[Deviation, ...]]:
    """Return one direction of a normalizer as a coarse table, and the error of that table.

    Args:
        normalizer: Its network must map each color by itself.
        size: Colors along each side: 17, 33 or 65.
        direction: To the reference stain, or from it to the style.
        digest: The SHA-256 of the exact table for the comments, if known.
    """
    table = normalizer.color_map(direction)

    def map_intensities(colors: Floats) -> Floats:
        mapped = table.map_densities((-np.log((255 * colors + 1) / 256)).astype(np.float32)).astype(np.float64)
        return np.asarray(((256 * np.exp(-mapped) - 1) / 255).clip(0, 1))

    grid = sample_grid(map_intensities, size)
    deviations = measure(grid, table)
    comments = (
        *describe(normalizer, direction),
        "Error against the exact map, with trilinear interpolation and rounding to 256 levels, on",
        *map(str, deviations),
        *([] if digest is None else [f"SHA-256 of the exact table: {digest}"]),
    )
    return Cube(f"BottleGAN {direction} {normalizer.name}", grid, comments), deviations


def describe(normalizer: "Normalizer", direction: "Direction") -> list[str]:
    """Return the origin of a map, line by line."""
    goal = "from this style to the reference stain" if direction == "normalize" else "from the reference stain to it"
    document, diagnosis = normalizer.model.document, normalizer.diagnosis
    stain, record = document.reference, forget_diagnosis(document.record)
    lines = [f"BottleGAN {__version__}", f"style: {normalizer.name}", f"direction: {direction}, {goal}"]
    if stain is not None:
        lines.append(f"reference stain: {stain.name}")
    if diagnosis is not None:
        lines.append(f"verdict: {diagnosis.verdict}: {diagnosis.reason}")
    # The receiver of this lab's table need not learn about other labs.
    own = {key: value for key, value in record.items() if not key.startswith("verdict on ")}
    return lines + [f"model: {key}: {value}" for key, value in own.items()]
