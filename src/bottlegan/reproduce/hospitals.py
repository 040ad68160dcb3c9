"""The federation of Table 3: real hospitals with masks of nuclei, some of which take no part.

Each fold leaves some labs out, and each lab is left out in one fold. Of the others half have labels. A lab that takes
part keeps some of its images apart, to be tested on; one that does not is tested on all of its own.
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
"""Of one lab: two labs have many more than the others, whom they would drown."""
TESTED = 3
"""One in so many images of a lab is tested on; a lab of a single image trains on it, and is scored where it is left
out."""
SMOKE_LABS, SMOKE_IMAGES, SMOKE_SIZE = 6, 3, 64


@dataclass(frozen=True)
class Hospital:
    """A lab and all of its images that count."""

    name: str
    images: list[Labeled]

    def take_part(self, has_labels: bool) -> LabData:
        """Return the lab as it takes part, with labels or without."""
        tested = range(TESTED - 1, len(self.images), TESTED) or range(1, len(self.images))
        train = [each for row, each in enumerate(self.images) if row not in tested]
        test = [self.images[row] for row in tested]
        return LabData(self.name, [each.image for each in train], train if has_labels else [], test)

    def visit(self) -> LabData:
        """Return the lab as it is scored when it takes no part: nothing of it is trained on."""
        return LabData(self.name, [each.image for each in self.images], [], self.images)


@dataclass(frozen=True)
class Deal:
    """Who takes part, and who does not."""

    members: list[LabData]
    visitors: list[LabData]


def read_hospitals(root: Path) -> list[Hospital]:
    """Return the labs in a folder of real images that have masks of nuclei."""
    found = []
    for name, images in sorted(open_real_data(root).labs.items()):
        marked = [each for each in images if each.mask is not None]
        if marked:
            found.append(Hospital(name, read_some(marked)))
    if len(found) < 2 * FOLDS:
        raise InputError(f"{root}: holds {len(found)} labs with masks of nuclei; table3 needs {2 * FOLDS} at least")
    return found


def read_some(images: Sequence[RealImage]) -> list[Labeled]:
    """Return at most so many images of a lab, at even distances, with their nuclei."""
    return [Labeled(each.read(), each.read_nuclei().astype(np.uint8)) for each in spread(images, MOST_IMAGES)]


def draw_hospitals() -> list[Hospital]:
    """Return labs of procedural tissue, whose epithelium stands for nuclei, to try the table with."""
    hospitals = []
    for row, style in enumerate(LABORATORIES[:SMOKE_LABS]):
        drawn = [draw_tissue(1, SMOKE_IMAGES * row + index, SMOKE_SIZE) for index in range(SMOKE_IMAGES)]
        images = [
            Labeled(
                from_batch(render(each.concentration[None], style, torch_stream(1, style.name)))[0],
                each.epithelium.numpy().astype(np.uint8),
            )
            for each in drawn
        ]
        hospitals.append(Hospital(style.name, images))
    return hospitals


def deal(hospitals: Sequence[Hospital], seed: int, fold: int) -> Deal:
    """Draw who takes part in a fold of a seed, and which of them have labels: those need two images at least."""
    order = numpy_stream(seed, "hospitals").permutation(len(hospitals)).tolist()
    visiting = set(order[fold::FOLDS])
    members = [each for row, each in enumerate(hospitals) if row not in visiting]
    able = [each.name for each in members if len(each.images) > 1]
    labeled = numpy_stream(seed, "labels", fold).permutation(able).tolist()[: len(members) // 2]
    return Deal(
        [each.take_part(each.name in labeled) for each in members],
        [hospitals[row].visit() for row in sorted(visiting)],
    )
