"""The federation of Table 3: real hospitals with masks of nuclei, some of which are left out.

Each fold leaves some labs out, and each lab is left out in one fold. Half of the others have labels. A lab that takes
part holds back some of its images for testing. A lab that is left out is tested on all of its images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bottlegan.core.errors import InputError
from bottlegan.core.seeding import numpy_stream, torch_stream
from bottlegan.data.lab import spread
from bottlegan.data.labels import Labeled
from bottlegan.data.real import RealImage, open_real_data
from bottlegan.imaging.tensors import from_batch
from bottlegan.reproduce.world import LabData
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES

FOLDS = 3
MOST_IMAGES = 12
"""Most images of one lab. Two labs have many more than the others, and would dominate."""
TESTED = 3
"""One in TESTED images of a lab is a test image. A lab with a single image trains on it, and is scored only when it is
left out."""
SMOKE_LABS, SMOKE_IMAGES, SMOKE_SIZE = 6, 3, 64


@dataclass(frozen=True)
class Hospital:
    """A lab and its images."""

    name: str
    images: list[Labeled]

    def take_part(self, has_labels: bool) -> LabData:
        """Return the lab's data when it takes part, with or without labels."""
        tested = range(TESTED - 1, len(self.images), TESTED) or range(1, len(self.images))
        train = [sample for row, sample in enumerate(self.images) if row not in tested]
        test = [self.images[row] for row in tested]
        return LabData(self.name, [sample.image for sample in train], train if has_labels else [], test)

    def visit(self) -> LabData:
        """Return the lab's data when it is left out and only scored."""
        return LabData(self.name, [sample.image for sample in self.images], [], self.images)


@dataclass(frozen=True)
class Deal:
    """The labs that take part, and those that are left out."""

    members: list[LabData]
    visitors: list[LabData]


def read_hospitals(root: Path) -> list[Hospital]:
    """Return the labs with masks of nuclei in a folder of real images."""
    hospitals = []
    for name, images in sorted(open_real_data(root).labs.items()):
        marked = [image for image in images if image.mask is not None]
        if marked:
            hospitals.append(Hospital(name, read_some(marked)))
    if len(hospitals) < 2 * FOLDS:
        raise InputError(f"{root}: holds {len(hospitals)} labs with masks of nuclei; table3 needs at least {2 * FOLDS}")
    return hospitals


def read_some(images: Sequence[RealImage]) -> list[Labeled]:
    """Return at most MOST_IMAGES evenly spaced images of a lab, with their nuclei."""
    return [Labeled(image.read(), image.read_nuclei().astype(np.uint8)) for image in spread(images, MOST_IMAGES)]


def draw_hospitals() -> list[Hospital]:
    """Return labs of procedural tissue for a quick trial; epithelium stands in for nuclei."""
    hospitals = []
    for row, style in enumerate(LABORATORIES[:SMOKE_LABS]):
        drawn = [draw_tissue(1, SMOKE_IMAGES * row + index, SMOKE_SIZE) for index in range(SMOKE_IMAGES)]
        images = [
            Labeled(
                from_batch(render(tissue.concentration[None], style, torch_stream(1, style.name)))[0],
                tissue.epithelium.numpy().astype(np.uint8),
            )
            for tissue in drawn
        ]
        hospitals.append(Hospital(style.name, images))
    return hospitals


def deal(hospitals: Sequence[Hospital], seed: int, fold: int) -> Deal:
    """Draw the labs that take part in a fold of a seed, and those with labels, which need at least two images."""
    order = numpy_stream(seed, "hospitals").permutation(len(hospitals)).tolist()
    visiting = set(order[fold::FOLDS])
    members = [hospital for row, hospital in enumerate(hospitals) if row not in visiting]
    able = [hospital.name for hospital in members if len(hospital.images) > 1]
    labeled = numpy_stream(seed, "labels", fold).permutation(able).tolist()[: len(members) // 2]
    return Deal(
        [hospital.take_part(hospital.name in labeled) for hospital in members],
        [hospitals[row].visit() for row in sorted(visiting)],
    )
