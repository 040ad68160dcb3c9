"""Labs of procedural tissue: a style, and folders of patches in it."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np

from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.files import replacing_folder
from bottlegan.core.progress import Progress, Silent
from bottlegan.core.seeding import numpy_stream, torch_stream
from bottlegan.imaging.files import MASK_ENDING, write_image, write_values
from bottlegan.imaging.tensors import from_batch
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import SMALLEST, draw_tissue
from bottlegan.stain.style import LABS, REFERENCE, Style, draw_style

MOST_PATCHES, LARGEST = 100_000, 8192


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
    truth: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a folder of patches, whole or not at all; the same arguments give the same bytes.

    Args:
        folder: Must not exist yet, or be empty.
        patches: Number of patches.
        size: Side of a patch, in pixels of 1 um.
        seed: Determines the tissue.
        style: Style of staining and scanning.
        masks: Whether to write a mask of the epithelium beside each patch, as class ids: 1 for epithelium.
        truth: A folder for the same tissue in the reference stain, to evaluate normalized patches with.
        progress: Receives progress.
    """
    if not 1 <= patches <= MOST_PATCHES:
        raise InputError(f"{folder}: a lab of {patches} patches cannot be drawn; ask for 1 to {MOST_PATCHES}")
    if not SMALLEST <= size <= LARGEST:
        raise InputError(f"{folder}: patches of {size} pixels cannot be drawn; ask for {SMALLEST} to {LARGEST}")
    folders = [folder.resolve()] + ([] if truth is None else [truth.resolve()])
    for path in folders:
        check_folder(path)
    if len(set(folders)) < len(folders):
        raise InputError(f"{truth}: is the folder of the lab itself; choose another one for the truth")
    with ExitStack() as stack:
        temporary, *beside = (stack.enter_context(replacing_folder(path)) for path in folders)
        for index in (progress or Silent()).track(range(patches), "drawing tissue", patches):
            tissue, name = draw_tissue(seed, index, size), f"patch-{index:03d}"
            image = render(tissue.concentration[None], style, torch_stream(seed, "noise", index))
            write_image(temporary / f"{name}.png", from_batch(image)[0])
            for place in beside:
                write_image(place / f"{name}.png", from_batch(render(tissue.concentration[None], REFERENCE))[0])
            if masks:
                write_values(temporary / f"{name}{MASK_ENDING}.png", tissue.epithelium.numpy().astype(np.uint8))


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not empty, or whose parent does not exist, before anything is drawn."""
    if not folder.parent.is_dir():
        raise MissingError(f"{folder.parent}: there is no such folder to write {folder.name} to; create it first")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file, and a lab is a folder; choose another name")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder}: is not empty, and nothing in it is overwritten; choose another folder")
