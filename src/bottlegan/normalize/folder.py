"""Mapping image files: one image to one image, or a folder to a folder."""

from collections.abc import Callable
from pathlib import Path

from bottlegan.data.patches import list_patches
from bottlegan.errors import InputError
from bottlegan.files import make_folder
from bottlegan.imaging.files import FORMATS, Levels, read_image, write_image
from bottlegan.progress import Progress, Silent

ColorMap = Callable[[Levels], Levels]


def map_files(source: Path, target: Path, color_map: ColorMap, progress: Progress | None = None) -> list[Path]:
    """Map the image `source` to the file `target`, or each image in a folder to one of the same name, and return those.

    Masks beside images are passed over. Every file is written whole or not at all.
    """
    progress = progress or Silent()
    pairs = pair_files(source, target)
    for image, output in progress.track(pairs, "mapping images", len(pairs)):
        write_image(output, color_map(read_image(image)))
    return [output for _, output in pairs]


def pair_files(source: Path, target: Path) -> list[tuple[Path, Path]]:
    """Return each image to read, and where its result goes; the target folder is made if need be."""
    if source.resolve() == target.resolve():
        raise InputError(f"{target}: is the input itself; name another output, the input is never overwritten")
    if not source.is_dir():
        if target.suffix.lower() not in FORMATS:
            raise InputError(f"{target}: is not an image name; end it in one of {', '.join(sorted(FORMATS))}")
        return [(source, target)]
    patches = list_patches(source)
    make_folder(target)
    return [(patch.image, target / patch.image.name) for patch in patches]
