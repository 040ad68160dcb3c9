"""Labs of procedural tissue: a style of their own, and folders of patches in it."""

from pathlib import Path

import numpy as np

from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.files import replacing_folder
from bottlegan.core.progress import Progress, Silent
from bottlegan.core.seeding import numpy_stream, torch_stream
from bottlegan.imaging.files import MASK_ENDING, write_image
from bottlegan.imaging.tensors import from_batch
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABS, Style, draw_style


def draw_lab(seed: int) -> Style:
    """Return the style of the lab that `seed` names."""
    return draw_style(numpy_stream(seed, "lab"), f"lab-{seed}", LABS)


def write_lab(
    folder: Path,
    patches: int,
    size: int,
    seed: int,
    style: Style,
    *,
    masks: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write a folder of patches, all or none; the same arguments give the same bytes.

    Args:
        folder: Must not be there yet, or hold nothing.
        patches: How many.
        size: Of a patch, `size` x `size` pixels of 1 um.
        seed: Decides which tissue is on them.
        style: How they are stained and scanned.
        masks: Whether to write each one's epithelium beside it.
        progress: Where to report.
    """
    if patches < 1:
        raise InputError(f"{folder}: a lab of {patches} patches cannot be drawn; ask for 1 or more")
    folder = folder.resolve()
    check_folder(folder)
    with replacing_folder(folder) as temporary:
        for index in (progress or Silent()).track(range(patches), "drawing tissue", patches):
            tissue, name = draw_tissue(seed, index, size), f"patch-{index:03d}"
            image = render(tissue.concentration[None], style, torch_stream(seed, "noise", index))
            write_image(temporary / f"{name}.png", from_batch(image)[0])
            if masks:
                epithelium = 255 * tissue.epithelium.numpy().astype(np.uint8)
                write_image(temporary / f"{name}{MASK_ENDING}.png", np.repeat(epithelium[..., None], 3, axis=2))


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something, or has no place to be, before anything is drawn."""
    if not folder.parent.is_dir():
        raise MissingError(f"{folder.parent}: there is no such folder to write {folder.name} to; create it first")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file, and a lab is a folder; choose another name")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder}: is not empty, and nothing in it is overwritten; choose another folder")
