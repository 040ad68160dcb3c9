"""Tissue in a style of its own and in the reference stain: what Table 2 and Figure 2 are made from.

Methods compare a styled patch with reference patches of similar content, so they must never see its own. Patches are
therefore cut in two halves, and the styles of each half are learned with the reference patches of the other.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.core.progress import Progress
from bottlegan.core.seeding import numpy_stream, torch_stream
from bottlegan.data.peso import PesoPatches, Stain, open_peso_patches
from bottlegan.imaging.files import Pixels, read_image
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.reproduce.classical import halves
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import PAPER, REFERENCE, draw_style

Scale = Literal["smoke", "cpu", "paper"]
"""`smoke`: seconds, on procedural tissue; `cpu`: all styles, default preset; `paper`: as many steps as the paper."""

SMOKE_STYLES = 6
SMOKE_SIZE = 96
VARIABLE = "BOTTLEGAN_PESO"


@dataclass(frozen=True)
class Half:
    """Half of the styles, one patch each, as RGB levels (H, W, 3), with what may be learned from and what may not."""

    label: str
    names: tuple[str, ...]
    styled: tuple[Pixels, ...]
    truths: tuple[Pixels, ...]
    """The same tissue in the reference stain: to score with, never to learn from."""
    pool: tuple[Pixels, ...]
    """The reference patches of the other half."""

    def first(self, count: int) -> "Half":
        """Return the first styles only, with the whole pool."""
        return Half(self.label, self.names[:count], self.styled[:count], self.truths[:count], self.pool)

    def pool_images(self) -> Tensor:
        """Return the pool as images (N, 3, H, W)."""
        return torch.cat([to_batch(levels) for levels in self.pool])


def load_halves(scale: Scale, data: Path | None, seed: int, progress: Progress) -> tuple[Half, Half]:
    """Return both halves: of procedural tissue at the scale `smoke`, which needs no data, and of PESO at any other."""
    if scale == "smoke":
        return cut(*draw_patches(seed, progress))
    patches = open_peso_patches(find_peso(data))
    return cut(patches.ids, *(read_patches(patches, stain, progress) for stain in ("styled", "reference")))


def cut(names: tuple[str, ...], styled: list[Pixels], reference: list[Pixels]) -> tuple[Half, Half]:
    """Cut the patches in two halves, each with the other's reference patches as its pool."""
    a, b = halves(names)
    styled_a, styled_b = halves(styled)
    reference_a, reference_b = halves(reference)
    return (
        Half("a", tuple(a), tuple(styled_a), tuple(reference_a), tuple(reference_b)),
        Half("b", tuple(b), tuple(styled_b), tuple(reference_b), tuple(reference_a)),
    )


def find_peso(data: Path | None) -> Path:
    """Return the folder of PESO patches: the one given, or the one that is known of."""
    if data is not None:
        return data
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    raise InputError(f"no PESO patches: give their folder as --data or in {VARIABLE}, or use --scale smoke")


def read_patches(patches: PesoPatches, stain: Stain, progress: Progress) -> list[Pixels]:
    """Return all patches in one stain."""
    tracked = progress.track(patches.ids, f"reading {stain} patches", len(patches.ids))
    return [read_image(patches.root / stain / f"{patch}.webp") for patch in tracked]


def draw_patches(seed: int, progress: Progress) -> tuple[tuple[str, ...], list[Pixels], list[Pixels]]:
    """Return names, styled patches and reference patches of procedural tissue, each in a random style of its own."""
    names, styled, reference = [], [], []
    for index in progress.track(range(SMOKE_STYLES), "drawing tissue", SMOKE_STYLES):
        content = draw_tissue(seed, index, SMOKE_SIZE).concentration[None]
        style = draw_style(numpy_stream(seed, "style", index), f"{index:03d}", PAPER)
        names.append(style.name)
        styled += from_batch(render(content, style, torch_stream(seed, "noise", index)))
        reference += from_batch(render(content, REFERENCE))
    return tuple(names), styled, reference
