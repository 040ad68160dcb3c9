"""Patches of PESO: prostate tissue with epithelium masks (Bulten et al. 2019), with ground truth for normalization.

`reference/NNN.webp` and `styled/NNN.webp` show the same tissue, 448 px, in the reference stain and in its own style.
`mask/NNN.png` is its epithelium.
"""

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
