"""Folders of patches: images, and masks beside them.

`tissue.png` is an image; `tissue_mask.png`, if it exists, is its mask. The name of a patch is its file name without the
suffix, so `028.png` in one folder and `028.webp` in another are the same patch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bottlegan.core.errors import ImageError, InputError, MissingError
from bottlegan.imaging.files import FORMATS, MASK_ENDING, Pixels, read_image, read_mask


@dataclass(frozen=True)
class Patch:
    """An image file and, for labeled patches, its mask file."""

    name: str
    image: Path
    mask: Path | None

    def read_image(self) -> Pixels:
        """Return RGB levels (H, W, 3), uint8."""
        return read_image(self.image)


def read_fitting_mask(path: Path, image: Pixels) -> NDArray[np.bool_]:
    """Return the mask (H, W) bool in `path`, which must have the size of `image` (H, W, 3)."""
    mask = read_mask(path)
    check_fitting(path, mask, image)
    return mask


def check_fitting(path: Path, mask: NDArray[Any], image: Pixels) -> None:
    """Refuse the mask (H, W) of the file `path` if it does not have the size of its image (H, W, 3)."""
    height, width = image.shape[:2]
    if mask.shape != (height, width):
        size = f"{mask.shape[1]} x {mask.shape[0]}"
        raise ImageError(f"{path}: is {size} px, but its image is {width} x {height} px; export both at the same size")


def list_patches(folder: Path) -> list[Patch]:
    """Return the patches in a folder, by name. Hidden files and files that are not images are ignored."""
    if not folder.is_dir():
        raise MissingError(f"{folder}: there is no such folder; check the path")
    files = sorted(f for f in folder.iterdir() if f.suffix.lower() in FORMATS and not f.name.startswith("."))
    masks = {f.stem.removesuffix(MASK_ENDING): f for f in files if f.stem.endswith(MASK_ENDING)}
    patches: dict[str, Patch] = {}
    for file in files:
        if file.stem.endswith(MASK_ENDING):
            continue
        if file.stem in patches:
            raise InputError(
                f"{folder}: holds both {patches[file.stem].image.name} and {file.name}; remove one of them"
            )
        patches[file.stem] = Patch(file.stem, file, masks.get(file.stem))
    if not patches:
        raise MissingError(f"{folder}: holds no image; put {', '.join(sorted(FORMATS))} files into it")
    return list(patches.values())


def list_labs(folder: Path, style_per_image: bool = False) -> dict[str, list[Patch]]:
    """Return the patches of each lab: one sub-folder per lab or, with `style_per_image`, one image per lab."""
    if style_per_image:
        return {patch.name: [patch] for patch in list_patches(folder)}
    if not folder.is_dir():
        raise MissingError(f"{folder}: there is no such folder; check the path")
    labs = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not labs:
        raise MissingError(f"{folder}: holds no sub-folder; make one for each lab, or use --style-per-image")
    return {path.name: list_patches(path) for path in labs}
