"""The federation of Table 1: real tissue with masks, dealt out to labs with a style each.

All tissue is available in the reference stain. So a lab's images can be rendered in its style, and an oracle row can
show the result if all labs stained alike.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from bottlegan.core.seeding import torch_stream
from bottlegan.data.labels import Labeled, Truth
from bottlegan.data.overlap import find_overlaps
from bottlegan.data.partition import LabShare, Partition, PartitionSpec, draw_partition
from bottlegan.data.peso import open_peso_patches
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch
from bottlegan.reproduce.paired import Scale, find_peso
from bottlegan.simulation.styles import render, unmix
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import MIXTURES, PAPER, REFERENCE, Style, Variety

StyleSet = Literal["mixtures", "wide"]
VARIETIES: dict[StyleSet, Variety] = {"mixtures": MIXTURES, "wide": PAPER}
"""How much styles differ: mixtures of nine laboratories, as in the paper's federation, or with much added noise."""
Stained = Literal["own", "reference"]

SMOKE = PartitionSpec(
    clients=4, train=2, test=1, reference=4, labeled_clients=2, windows=4, window_size=64, most_windows=3, folds=2
)
SMOKE_SIZE = 96


@dataclass(frozen=True)
class Content:
    """A patch of tissue."""

    image: Pixels
    """(H, W, 3), in the reference stain."""
    concentration: Tensor
    """(2, H, W): the uptake of each stain, from which images in other styles are rendered."""
    mask: Truth
    """(H, W): 1 in epithelium."""


@dataclass(frozen=True)
class LabData:
    """One client's data, in one stain."""

    name: str
    train: list[Pixels]
    """All training patches; only windows of them are labeled."""
    labeled: list[Labeled]
    test: list[Labeled]


@dataclass(frozen=True)
class World:
    """All tissue, and how it is dealt out."""

    partition: Partition
    contents: dict[str, Content]

    def reference_set(self) -> list[Pixels]:
        """Return the public set C."""
        return [self.stain(patch, None) for patch in self.partition.reference]

    def validation(self) -> list[Labeled]:
        """Return the server's validation patches, in the reference stain."""
        return [Labeled(self.stain(patch, None), self.contents[patch].mask) for patch in self.partition.validation]

    def labs(self, stained: Stained) -> list[LabData]:
        """Return all clients' data, in their own stains or all in the reference stain."""
        return [self.lab(client, client.style if stained == "own" else None) for client in self.partition.clients]

    def lab(self, client: LabShare, style: Style | None) -> LabData:
        """Return one client's data in a style, or in the reference stain."""
        train = {patch: self.stain(patch, style) for patch in client.train}
        labeled = []
        for window in client.windows:
            place = np.s_[window.top : window.top + window.size, window.left : window.left + window.size]
            labeled.append(Labeled(train[window.patch][place], self.contents[window.patch].mask[place]))
        test = [Labeled(self.stain(patch, style), self.contents[patch].mask) for patch in client.test]
        return LabData(client.name, list(train.values()), labeled, test)

    def stain(self, patch: str, style: Style | None) -> Pixels:
        """Return a patch as a lab would scan it. The noise depends only on the lab and the patch."""
        if style is None:
            return self.contents[patch].image
        noise = torch_stream(self.partition.seed, "noise", style.name, patch)
        return from_batch(render(self.contents[patch].concentration[None], style, noise))[0]


def draw_world(scale: Scale, styles: StyleSet, data: Path | None, seed: int, fold: int) -> World:
    """Deal out PESO or, at the scale `smoke`, procedural tissue."""
    spec = replace(SMOKE if scale == "smoke" else PartitionSpec(), variety=VARIETIES[styles])
    contents = draw_contents() if scale == "smoke" else read_contents(find_peso(data))
    sizes = {patch: (content.mask.shape[0], content.mask.shape[1]) for patch, content in contents.items()}
    return World(draw_partition(sizes, spec, seed, fold), contents)


def draw_contents() -> dict[str, Content]:
    """Return procedural patches: as many as the smallest federation needs, and two for validation."""
    contents = {}
    for index in range(SMOKE.clients * (SMOKE.train + SMOKE.test) + SMOKE.reference + 2):
        drawn = draw_tissue(0, index, SMOKE_SIZE)
        image = from_batch(render(drawn.concentration[None], REFERENCE))[0]
        contents[f"{index:03d}"] = Content(image, drawn.concentration, drawn.epithelium.numpy().astype(np.uint8))
    return contents


@lru_cache(maxsize=1)
def read_contents(root: Path) -> dict[str, Content]:
    """Return all PESO patches except those that overlap with an earlier one, so no tissue is trained and tested on.

    The uptake of each stain is computed from the reference-stained images.
    """
    patches = open_peso_patches(root)
    contents = {}
    for patch in patches.ids:
        image = patches.read_images("reference", (patch,))
        concentration = unmix(image, REFERENCE).clamp_min(0)[0]
        contents[patch] = Content(from_batch(image)[0], concentration, patches.read_mask(patch).astype(np.uint8))
    for _, later in find_overlaps({name: content.image for name, content in contents.items()}):
        contents.pop(later, None)
    return contents
