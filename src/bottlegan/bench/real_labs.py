"""The quality of normalizing images of real laboratories: ours and the peers in one run, on the same pixels.

There is no ground truth. What can be measured without: after normalization nuclei should have the same color in every
lab, and so should other tissue; nuclei must stay darker than it; glass must stay as white as it was, without a halo
around tissue; the same place in several stainings should come out alike; what is no H&E should be refused.

Each method is fitted to all images of a lab, and once more to each image alone. One that fails on an image leaves it as
it is, and is counted. Nothing is random.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from bottlegan.bench.normalize import clock
from bottlegan.bench.real_colors import (
    Color,
    Colors,
    Regions,
    average,
    find_regions,
    measure_colors,
    measure_spread,
    summarize_glass,
)
from bottlegan.bench.real_methods import NOTHING, LabMethod, Opinion, apply, list_methods
from bottlegan.bench.real_restained import Tiles, measure_restained, read_tiles
from bottlegan.bench.real_slide import Glass, measure_glass, read_glass
from bottlegan.core.errors import InputError
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.data.lab import spread
from bottlegan.data.real import RealData
from bottlegan.imaging.files import Pixels, read_image
from bottlegan.reproduce.table2_files import find_commit

WAYS = ("labs", "images")
"""The ways to fit a method: to all images of a lab, or to each image alone."""
VERDICTS = ("good", "uncertain", "refused")
PATCHES, SIDE = 6, 448
"""Number of a lab's patches for timing a fit, and their side in pixels."""


@dataclass(frozen=True)
class Sample:
    """One image of a lab, with its regions and colors before any mapping."""

    name: str
    lab: str
    image: Pixels
    regions: Regions
    colors: Colors


@dataclass(frozen=True)
class Mapped:
    """The result of a method for one image."""

    sample: Sample
    colors: Colors
    failed: bool
    opinion: Opinion | None
    """The method's opinion of its fit."""


@dataclass(frozen=True)
class World:
    """All images for measuring."""

    labs: dict[str, list[Sample]]
    tiles: Tiles
    glass: Glass | None
    odd: tuple[Path, ...]

    @property
    def samples(self) -> list[Sample]:
        """The images of all labs."""
        return [sample for samples in self.labs.values() for sample in samples]


def bench_real_labs(
    data: RealData,
    methods: dict[str, LabMethod | str] | None = None,
    model: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Json]:
    """Return the figures of all methods.

    Args:
        data: Real images.
        methods: Rows by name, or the reason why a row is missing; by default doing nothing, ours and the peers.
        model: The model file for our fits; by default the one shipped in the package.
        progress: Receives progress.
    """
    progress = progress or Silent()
    world = read_world(data, progress)
    rows: dict[str, Json] = {}
    for name, method in (methods or list_methods(model)).items():
        rows[name] = {"note": method} if isinstance(method, str) else measure_method(name, method, world, progress)
    add_shares(rows)
    return {
        "images": len(world.samples),
        "labs": len(world.labs),
        "labs with nuclei": sum(any(s.regions.nuclei is not None for s in lab) for lab in world.labs.values()),
        "threads": torch.get_num_threads(),
        "load average": os.getloadavg()[0],
        "commit": find_commit(),
        "rows": rows,
    }


def read_world(data: RealData, progress: Progress) -> World:
    """Read all images, and find their regions."""
    labs: dict[str, list[Sample]] = {}
    for entry in progress.track(data.images, "reading images", len(data.images)):
        image = entry.read()
        regions = find_regions(image, None if entry.mask is None else entry.read_nuclei())
        labs.setdefault(entry.lab, []).append(
            Sample(entry.name, entry.lab, image, regions, measure_colors(image, regions))
        )
    glass = None if data.slide is None else read_glass(data.slide)
    return World(labs, read_tiles(data.restained), glass, data.odd)


def measure_method(name: str, method: LabMethod, world: World, progress: Progress) -> dict[str, Json]:
    """Return all figures of one method."""
    row: dict[str, Json] = {}
    images = {f"{sample.lab}/{sample.name}": [sample] for sample in world.samples}
    for way, groups in zip(WAYS, (world.labs, images), strict=True):
        tracked = progress.track(list(groups.items()), f"{name}, fitted to {way}", len(groups))
        mapped = {group: map_lab(method, samples) for group, samples in tracked}
        row |= {f"{key}, {way}": value for key, value in summarize(mapped).items()}
    for key, measure in progress.track(list(MORE.items()), f"{name}, more", len(MORE)):
        row[key] = measure(method, world)
    return row


def map_lab(method: LabMethod, lab: Sequence[Sample]) -> list[Mapped]:
    """Fit a method to all images of a lab, and map them."""
    fitted = method.fit([sample.image for sample in lab])
    outputs = [apply(fitted, sample.image) for sample in lab]
    return [
        Mapped(sample, measure_colors(output, sample.regions), not worked, fitted.opinion)
        for sample, (output, worked) in zip(lab, outputs, strict=True)
    ]


def summarize(groups: dict[str, list[Mapped]]) -> dict[str, Json]:
    """Return the figures of a method that was fitted to each group of images: a lab, or a single image."""
    images = [result for group in groups.values() for result in group]
    group_colors = {name: average([result.colors for result in group]) for name, group in groups.items()}
    known = {name: colors for name, colors in group_colors.items() if colors is not None}
    darker = [result.colors.nuclei_are_darker for result in images if result.colors.nuclei_are_darker is not None]
    opinions = {name: group[0].opinion for name, group in groups.items()}
    return {
        "spread": measure_spread(list(known.values())) if len(known) > 1 else None,
        "nuclei darker": sum(darker) / len(darker) if darker else None,
        "glass": summarize_glass([result.sample.colors for result in images], [result.colors for result in images]),
        "failed": sum(result.failed for result in images),
        "verdicts": share_verdicts(list(opinions.values())),
        "opinions": {name: _tell(opinion) for name, opinion in opinions.items()},
        "colors": {
            name: {"nuclei": _round(nuclei), "other tissue": _round(other)} for name, (nuclei, other) in known.items()
        },
    }


def _round(color: Color) -> list[Json]:
    return [round(float(part), 2) for part in color]


def _tell(opinion: Opinion | None) -> dict[str, Json] | None:
    if opinion is None:
        return None
    return {
        "verdict": opinion.verdict,
        "reason": opinion.reason,
        "expected error": opinion.expected_error,
        "gain": opinion.gain,
    }


def share_verdicts(opinions: Sequence[Opinion | None]) -> dict[str, Json] | None:
    """Return the share of each verdict; None if the method has none."""
    verdicts = Counter(opinion.verdict for opinion in opinions if opinion is not None)
    return {verdict: verdicts[verdict] / len(opinions) for verdict in VERDICTS} if verdicts else None


def measure_places(method: LabMethod, world: World) -> dict[str, Json] | None:
    """Return how far stainings differ after normalization, if places exist in several stainings."""
    several = any(len(tiles) > 1 for tiles in world.tiles.values())
    return dict[str, Json](measure_restained(method, world.tiles)) if several else None


def measure_slide(method: LabMethod, world: World) -> dict[str, Json] | None:
    """Return the change of the slide's glass, if there is a slide."""
    return None if world.glass is None else dict[str, Json](measure_glass(method, world.glass))


def judge_odd(method: LabMethod, world: World) -> dict[str, Json]:
    """Return a method's opinion of each odd image, fitted to it alone, or its error if it fails."""
    opinions: dict[str, Json] = {}
    for path in world.odd:
        try:
            opinions[path.name] = _tell(method.fit([read_image(path)]).opinion)
        except InputError as error:
            opinions[path.name] = {"verdict": "error", "reason": str(error), "expected error": None, "gain": None}
    return opinions


def time_fits(method: LabMethod, world: World) -> float | None:
    """Return the median seconds of a fit to six patches of a lab; None if the method does not fit."""
    labs = [[sample.image for sample in lab] for lab in world.labs.values() if len(lab) >= PATCHES]
    if not (method.learns and labs):
        return None
    patches = [[cut_patch(image) for image in spread(lab, PATCHES)] for lab in labs]
    method.fit(patches[0])  # the first call may compile something
    return median(clock(partial(method.fit, lab)) for lab in patches)


def cut_patch(image: Pixels) -> Pixels:
    """Return the middle (S, S, 3) of an image, or all of a smaller one."""
    top, left = (max(0, side - SIDE) // 2 for side in image.shape[:2])
    return np.ascontiguousarray(image[top : top + SIDE, left : left + SIDE])


def add_shares(rows: dict[str, Any]) -> None:
    """Add to each row's spreads their ratio to those of doing nothing, if that was measured."""
    for key in (f"spread, {way}" for way in WAYS):
        base = rows.get(NOTHING, {}).get(key)
        for spreads in (row.get(key) for row in rows.values()):
            if base and spreads:
                spreads["share of nothing"] = spreads["both"] / base["both"]


MORE: dict[str, Callable[[LabMethod, World], Json]] = {
    "restained": measure_places,
    "slide": measure_slide,
    "odd": judge_odd,
    "seconds to fit six patches": time_fits,
}
"""Measurements other than those of labs."""
