"""Mapping image files: one image to one image, or a folder to a folder."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bottlegan.colormap.table import Convert
from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.files import make_folder
from bottlegan.core.progress import Progress, Silent
from bottlegan.data.patches import list_patches
from bottlegan.imaging.files import FORMATS, read_image, write_image
from bottlegan.normalize.choice import RefusedError


class ImagePair(NamedTuple):
    """An image, and where its result goes."""

    source: Path
    target: Path


def map_files(
    pairs: Sequence[ImagePair], choose: Callable[[Path], Convert], progress: Progress | None = None
) -> list[RefusedError]:
    """Map images, each as `choose` says, and return why some were refused, and not written.

    Every file is written whole or not at all; their folder is made when there is something to write.
    """
    refused = []
    for source, target in (progress or Silent()).track(pairs, "mapping images", len(pairs)):
        try:
            convert = choose(source)
        except RefusedError as error:
            refused.append(error)
            continue
        mapped = convert(read_image(source))
        make_folder(target.parent)
        write_image(target, mapped)
    return refused


def pair_files(source: Path, target: Path) -> list[ImagePair]:
    """Return each image to read, and where its result goes; refuse a place that cannot be written to.

    Masks beside images are passed over.
    """
    if source.resolve() == target.resolve():
        raise InputError(f"{target}: is the input itself; name another output, the input is never overwritten")
    if not source.is_dir():
        if target.suffix.lower() not in FORMATS:
            raise InputError(f"{target}: is not an image name; end it in one of {', '.join(sorted(FORMATS))}")
        if not target.parent.is_dir():
            raise MissingError(f"{target.parent}: there is no such folder to write {target.name} to; create it first")
        return [ImagePair(source, target)]
    if target.exists() and not target.is_dir():
        raise InputError(f"{target}: is a file, and what becomes of a folder is a folder; choose another place")
    patches = list_patches(source)
    return [ImagePair(patch.image, target / patch.image.name) for patch in patches]
