"""Mapping image files: an image to an image, or a folder to a folder."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bottlegan.colormap.table import Convert
from bottlegan.core.errors import ImageError, InputError
from bottlegan.core.files import check_apart, check_folder, check_readable, check_writable, make_folder, replacing
from bottlegan.core.progress import Progress, Silent
from bottlegan.data.patches import list_patches
from bottlegan.imaging.files import FORMATS, read_image, write_image
from bottlegan.normalize.choice import RefusedError


class ImagePair(NamedTuple):
    """An image, and the path of its result."""

    source: Path
    target: Path
    mask: Path | None = None
    """Mask of the image, which is copied beside the result."""


def map_files(
    pairs: Sequence[ImagePair], choose: Callable[[Path], Convert], progress: Progress | None = None
) -> list[InputError]:
    """Map each image with the map that `choose` returns. Return why some were refused or could not be read.

    Every file is written whole or not at all. The folder is created when there is something to write.
    """
    failures: list[InputError] = []
    for source, target, mask in (progress or Silent()).track(pairs, "mapping images", len(pairs)):
        try:
            mapped = choose(source)(read_image(source))
            mask_bytes = None if mask is None else _read_bytes(mask)
        except (ImageError, RefusedError) as error:
            failures.append(error)
            continue
        make_folder(target.parent)
        write_image(target, mapped)
        if mask is not None and mask_bytes is not None:
            with replacing(target.with_name(mask.name)) as temporary:
                temporary.write_bytes(mask_bytes)
    return failures


def _read_bytes(mask: Path) -> bytes:
    """Return the content of a mask's file, or raise an `ImageError` that says why it cannot be read."""
    try:
        check_readable(mask)
        return mask.read_bytes()
    except InputError as error:
        raise ImageError(str(error)) from None
    except OSError as error:
        raise ImageError(f"{mask}: cannot be read ({error.strerror}); replace or remove it") from None


def pair_files(source: Path, target: Path) -> list[ImagePair]:
    """Return each image and the path of its result; refuse a path that cannot be written."""
    check_apart([target], [source])
    if not source.is_dir():
        if target.suffix.lower() not in FORMATS:
            raise InputError(f"{target}: is not the name of an image; end it in one of {', '.join(sorted(FORMATS))}")
        check_writable(target)
        return [ImagePair(source, target)]
    check_folder(target)
    patches = list_patches(source)
    return [ImagePair(patch.image, target / patch.image.name, patch.mask) for patch in patches]
