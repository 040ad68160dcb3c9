"""Outlines of classes as GeoJSON for QuPath: one annotation for each connected region, including its holes."""

import json
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bottlegan.core.files import replacing
from bottlegan.core.progress import Json
from bottlegan.core.task import IGNORED

SMALLEST = 8
"""For segmentation: regions with fewer pixels of the map than this are left out."""
COLORS = (
    (240, 240, 240),
    (200, 30, 60),
    (40, 110, 200),
    (245, 170, 30),
    (60, 160, 80),
    (140, 80, 180),
    (0, 175, 180),
    (150, 100, 60),
)
"""Colors of classes by id. After the last they repeat from the second. The first, the background, is nearly white."""

Ring = list[list[float]]


def list_colors(count: int) -> NDArray[np.uint8]:
    """Return the colors (256, 3) of class ids: those of `count` classes, and black for all other ids."""
    colors = np.zeros((256, 3), np.uint8)
    rest = len(COLORS) - 1
    for k in range(count):
        colors[k] = COLORS[k if k == 0 else 1 + (k - 1) % rest]
    return colors


def write_outlines(
    path: Path, classes: NDArray[np.uint8], names: Sequence[str], scale: float, smallest: int = SMALLEST
) -> dict[str, int]:
    """Write the outlines of all classes except the first to `path`, whole or not at all. Return the number per class.

    Args:
        path: A file that ends in .geojson.
        classes: (H, W) class ids.
        names: Names of the classes.
        scale: Pixels of the finest level per pixel of the map, along a side. Outlines are in pixels of that level.
        smallest: Regions with fewer pixels of the map are left out.
    """
    colors, counts = list_colors(len(names)), dict.fromkeys(names[1:], 0)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write('{"type": "FeatureCollection", "features": [')
        separator = "\n"
        for k, name in enumerate(names[1:], start=1):
            for rings in trace(classes == k, smallest):
                placed: list[Json] = [[[x * scale, y * scale] for x, y in ring] for ring in rings]
                file.write(separator + json.dumps(describe(placed, name, colors[k].tolist()), allow_nan=False))
                separator, counts[name] = ",\n", counts[name] + 1
        file.write("\n]}\n")
    return counts


def describe(rings: list[Json], name: str, color: list[int]) -> dict[str, Json]:
    """Return one region as a feature. Its id is a hash of its content, so the same slide gives the same bytes."""
    content = json.dumps([name, rings])
    return {
        "type": "Feature",
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, content)),
        "geometry": {"type": "Polygon", "coordinates": rings},
        "properties": {"objectType": "annotation", "classification": {"name": name, "color": list(color)}},
    }


def trace(mask: NDArray[np.bool_], smallest: int = SMALLEST) -> Iterator[list[Ring]]:
    """Yield the rings of each region of a mask (H, W): its outline, then its holes, as closed lists of x and y.

    Pixels that touch only at a corner belong to different regions. Coordinates are those of pixel corners: (0, 0) is
    the upper left corner of the first pixel. Regions and holes with fewer pixels than `smallest` are left out.
    """
    from skimage.measure import find_contours, label  # noqa: PLC0415 - it takes a while

    # With a margin of zeros, all contours are closed.
    regions = label(np.pad(mask, 1), connectivity=1)
    regions[np.bincount(regions.ravel())[regions] < smallest] = 0
    rings_by_region: dict[int, list[tuple[float, NDArray[np.float64]]]] = {}
    for line in find_contours((regions > 0).astype(np.float32), 0.5, fully_connected="low"):
        area = _measure(line)
        # A point of a contour lies between two pixels, one of which is in its region.
        before, after = np.floor(line[0]).astype(int), np.ceil(line[0]).astype(int)
        region = max(regions[*before], regions[*after])
        if abs(area) >= smallest - 1:
            rings_by_region.setdefault(int(region), []).append((area, line))
    for rings in rings_by_region.values():
        # Outlines run in the opposite direction to holes, and enclose the most.
        rings.sort(key=lambda ring: -abs(ring[0]))
        # Subtracts the margin, and moves from the middle of a pixel to its corner.
        yield [(simplify(line) - 0.5)[:, ::-1].tolist() for _, line in rings]


def simplify(line: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a closed line (N, 2) without points that lie between their neighbors on a straight line."""
    steps = np.diff(line, axis=0)
    before, after = np.roll(steps, 1, axis=0), steps
    turns = before[:, 0] * after[:, 1] != before[:, 1] * after[:, 0]
    # At least a triangle; three points on a straight line would be none.
    kept = line[:-1][turns] if turns.sum() >= 3 else line[:-1]
    return np.concatenate([kept, kept[:1]])


def _measure(line: NDArray[np.float64]) -> float:
    """Return the signed area that a closed line encloses."""
    y, x = line.T
    return float((x[:-1] * y[1:] - x[1:] * y[:-1]).sum() / 2)


def count_pixels(classes: NDArray[np.uint8], count: int) -> NDArray[np.int64]:
    """Return the number of pixels (K,) of each of `count` classes; other ids are not counted."""
    return np.bincount(classes.reshape(-1), minlength=IGNORED + 1)[:count]
