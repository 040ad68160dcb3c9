"""PESO: prostate tissue with epithelium masks (Bulten et al. 2019), in two layouts.

*Patches*, 448 px with ground truth for normalization: `reference/NNN.webp` and `styled/NNN.webp` show the same tissue
in the reference stain and in a style of its own; `mask/NNN.png` is its epithelium.

*Slides*, as published: `pds_N_HE.tif` with `pds_N_HE_training_mask.tif`, or `..._mask_corrected.tif` if a pathologist
corrected it. In these masks 0 is not annotated, 1 is other tissue and 2 is epithelium. They are one pyramid level finer
than the slide.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bottlegan.core.errors import MissingError
from bottlegan.data.patches import read_fitting_mask
from bottlegan.imaging.files import read_image
from bottlegan.imaging.tensors import to_batch

Stain = Literal["reference", "styled"]


@dataclass(frozen=True)
class PesoPatches:
    """The patches in one folder, by id."""

    root: Path
    ids: tuple[str, ...]

    def read_images(self, stain: Stain, ids: tuple[str, ...]) -> Tensor:
        """Return the patches `ids` in the given stain as images (N, 3, 448, 448) in [0, 1]."""
        return torch.cat([to_batch(read_image(self.root / stain / f"{i}.webp")) for i in ids])

    def read_mask(self, patch: str) -> NDArray[np.bool_]:
        """Return the epithelium mask of a patch, (448, 448) bool."""
        image = read_image(self.root / "reference" / f"{patch}.webp")
        return read_fitting_mask(self.root / "mask" / f"{patch}.png", image)


def open_peso_patches(root: Path) -> PesoPatches:
    """List the patches under `root`. Each must exist in both stains and with its mask."""
    ids = sorted(path.stem for path in (root / "reference").glob("*.webp"))
    if not ids:
        raise MissingError(f"{root}: holds no PESO patches; expected reference/*.webp, styled/*.webp and mask/*.png")
    for patch in ids:
        for path in (root / "styled" / f"{patch}.webp", root / "mask" / f"{patch}.png"):
            if not path.is_file():
                raise MissingError(f"{path}: is missing beside reference/{patch}.webp; copy the data set again")
    return PesoPatches(root, tuple(ids))


@dataclass(frozen=True)
class PesoSlide:
    """One slide of PESO as published."""

    number: int
    slide: Path
    mask: Path | None
    """None for the test slides, which have no mask."""
    corrected: bool
    """Whether a pathologist corrected the mask."""


def list_peso_slides(root: Path) -> list[PesoSlide]:
    """Return the slides anywhere under `root`, by number, each with its best mask."""
    files = {path.name: path for path in root.rglob("pds_*_HE*.tif")}
    slides = []
    for name, path in files.items():
        match = re.fullmatch(r"pds_(\d+)_HE\.tif", name)
        if match is None:
            continue
        stem = name.removesuffix(".tif")
        corrected = files.get(f"{stem}_training_mask_corrected.tif")
        mask = corrected or files.get(f"{stem}_training_mask.tif")
        slides.append(PesoSlide(int(match[1]), path, mask, corrected is not None))
    if not slides:
        raise MissingError(f"{root}: holds no PESO slide; expected files like pds_1_HE.tif, unzipped")
    return sorted(slides, key=lambda slide: slide.number)
