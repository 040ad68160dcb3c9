"""Patches in their own style and in the reference stain, from which Table 2 and Figure 2 are made.

Methods compare a styled patch with reference patches of similar content, so they must never see the same patch in the
reference stain. Patches are therefore cut in two halves, and each half's styles are learned with the other half's
reference patches.
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
"""`smoke`: takes seconds, on procedural tissue; `cpu`: all styles, default preset; `paper`: the paper's steps."""

SMOKE_STYLES = 6
SMOKE_SIZE = 96
VARIABLE = "BOTTLEGAN_PESO"


@dataclass(frozen=True)
class Half:
    """Half of the styles, one uint8 patch (H, W, 3) each, with the truth and the reference patches to learn from."""

    label: str
    names: tuple[str, ...]
    styled: tuple[Pixels, ...]
    truths: tuple[Pixels, ...]
    """The same tissue in the reference stain, for scoring only, never for learning."""
    pool: tuple[Pixels, ...]
    """The reference patches of the other half."""

    def first(self, count: int) -> "Half":
        """Return the first `count` styles, with the whole pool."""
        return Half(self.label, self.names[:count], self.styled[:count], self.truths[:count], self.pool)

    def pool_images(self) -> Tensor:
        """Return the pool as images (N, 3, H, W)."""
        return torch.cat([to_batch(levels) for levels in self.pool])


def load_halves(scale: Scale, data: Path | None, seed: int, progress: Progress) -> tuple[Half, Half]:
    """Return both halves: procedural tissue at the scale `smoke`, which needs no data, or else PESO."""
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
    """Return the folder of PESO patches: `data`, or the folder in the environment variable."""
    if data is not None:
        return data
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    raise InputError(f"there are no PESO patches; give their folder with --data or {VARIABLE}, or use --scale smoke")


def read_patches(patches: PesoPatches, stain: Stain, progress: Progress) -> list[Pixels]:
    """Return all patches in one stain."""
    tracked = progress.track(patches.ids, f"reading {stain} patches", len(patches.ids))
    return [read_image(patches.root / stain / f"{patch}.webp") for patch in tracked]


def draw_patches(seed: int, progress: Progress) -> tuple[tuple[str, ...], list[Pixels], list[Pixels]]:
    """Return names, styled patches and reference patches of procedural tissue, each in its own random style."""
    names, styled, reference = [], [], []
    for index in progress.track(range(SMOKE_STYLES), "drawing tissue", SMOKE_STYLES):
        content = draw_tissue(seed, index, SMOKE_SIZE).concentration[None]
        style = draw_style(numpy_stream(seed, "style", index), f"{index:03d}", PAPER)
        names.append(style.name)
        styled += from_batch(render(content, style, torch_stream(seed, "noise", index)))
        reference += from_batch(render(content, REFERENCE))
    return tuple(names), styled, reference
