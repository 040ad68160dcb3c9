"""Plain image files, read whole and checked, and written whole or not at all."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from bottlegan.core.errors import ImageError, InputError
from bottlegan.core.files import check_readable, replacing

Pixels = NDArray[np.uint8]
"""An RGB image (H, W, 3), or several, with 256 levels per channel."""

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF", ".webp": "WEBP"}
"""Formats that can be read and written, by suffix."""
MASK_ENDING = "_mask"
"""Ending of a mask's file name: `a_mask.png` is the mask of `a.png`."""
MOST_PIXELS, MOST_MASK_PIXELS = 10**8, 2**26
"""Limits of a file that is read whole, which takes less than 1 GB. Larger files are slides."""
STRIP_PIXELS = 2**22

_SAVE: dict[str, dict[str, object]] = {
    "PNG": {},
    "JPEG": {"quality": 95, "subsampling": 0},  # 4:4:4, because chroma is where the stain is
    "TIFF": {"compression": "tiff_deflate"},
    "WEBP": {"lossless": True},
}
_STDERR = Lock()  # held while the standard error of the process is redirected
_GRAY = ("1", "L", "LA", "La", "I", "F")
_TIFF_BEGINS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # also BigTIFF, in either order of bytes


def read_image(path: Path) -> Pixels:
    """Return an image file as RGB levels (H, W, 3), uint8.

    Alpha is flattened on white, the color of empty glass. 16 bits per channel are scaled to 8. Grayscale and CMYK files
    are refused, because neither shows the color of a stain.
    """
    return to_pixels(_open(path, MOST_PIXELS), str(path))


def to_pixels(image: Image.Image, name: str = "image") -> Pixels:
    """Return a decoded image as RGB levels (H, W, 3), uint8, as `read_image` does; errors name it `name`."""
    if image.mode in _GRAY or image.mode.startswith("I;16"):
        raise ImageError(f"{name}: is grayscale ({image.mode}), but stains differ by color; give the RGB image")
    if image.mode == "CMYK":
        raise ImageError(f"{name}: is CMYK, whose colors depend on a printer; convert it to RGB first")
    width, height = image.size
    levels = np.empty((height, width, 3), np.uint8)
    # In strips, because each step makes a copy, and several copies of a large image would not fit into memory.
    rows = max(1, STRIP_PIXELS // width)
    for top in range(0, height, rows):
        strip = image.crop((0, top, width, min(top + rows, height)))
        if image.has_transparency_data:
            layer = strip.convert("RGBA")
            strip = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        levels[top : top + rows] = np.asarray(strip.convert("RGB"))
    return levels


def read_mask(path: Path) -> NDArray[np.bool_]:
    """Return a mask file as booleans (H, W): true where it is not zero. The file may hold at most two values."""
    values = read_values(path)
    distinct = np.unique(values)
    if len(distinct) > 2 or (len(distinct) == 2 and distinct[0] != 0):
        raise ImageError(f"{path}: is not a mask of two values; give 0 for background, 1 or 255 for epithelium")
    return values != 0


def read_values(path: Path) -> NDArray[np.int64]:
    """Return the values (H, W) of a mask file: its one channel or, if it has a palette, the indices into that."""
    image = _open(path, MOST_MASK_PIXELS)
    if image.mode in ("RGB", "RGBA", "P"):
        channels = np.asarray(image.convert("RGB"))
        colored = bool((channels != channels[..., :1]).any())
        if colored and image.mode != "P":
            raise ImageError(f"{path}: is a color image, not a mask; give one channel, 0 for background")
        values = np.asarray(image) if colored else channels[..., 0]
    else:
        values = np.asarray(image)
    if values.ndim != 2 or values.dtype.kind not in ("b", "u", "i"):
        raise ImageError(f"{path}: is not a mask of whole numbers, one a pixel; give one channel of 8 or 16 bits")
    return values.astype(np.int64)


def write_values(path: Path, values: NDArray[np.uint8], colors: NDArray[np.uint8] | None = None) -> None:
    """Write values (H, W) unchanged to a PNG, shown as gray or, with `colors` (K, 3), in one color per class id."""
    image = Image.fromarray(values)
    if colors is not None:
        image = image.convert("P")
        image.putpalette(colors.tobytes())
    with replacing(path) as temporary:
        image.save(temporary, format="PNG")


def write_image(path: Path, levels: Pixels) -> None:
    """Write RGB levels (H, W, 3), uint8, in the format that the suffix of `path` names."""
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise InputError(f"{path}: unknown image format `{path.suffix}`; use one of {', '.join(sorted(FORMATS))}")
    with replacing(path) as temporary:
        Image.fromarray(levels).save(temporary, format=kind, **_SAVE[kind])


@contextmanager
def _silencing_libtiff() -> Iterator[None]:
    """Keep libtiff from printing its own lines about damaged tags; our error message reports the damage."""
    with _STDERR:
        sys.stderr.flush()
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            os.close(nowhere)


def _open(path: Path, most: int) -> Image.Image:
    """Return the decoded file, upright, or raise an error that says what is wrong with it.

    A file of more than `most` pixels is refused before it is decoded.
    """
    check_readable(path)
    formats = "PNG, JPEG, TIFF or WebP"
    try:
        # When Pillow warns about a damaged file, it then either reads the file anyway or refuses it.
        with warnings.catch_warnings(action="ignore"), Image.open(path, formats=tuple(_SAVE)) as image:
            # Checked before decoding: a file of a few kilobytes can claim any size.
            if image.width * image.height > most:
                raise Image.DecompressionBombError
            with _silencing_libtiff() if image.format == "TIFF" else nullcontext():
                image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return image
    except UnidentifiedImageError:
        with path.open("rb") as file:
            if file.read(4) in _TIFF_BEGINS:
                # Most slides store the position of their images at the end of the file.
                raise ImageError(f"{path}: is truncated or damaged (it has no image); copy it again") from None
        raise ImageError(f"{path}: is not an image that can be read; give {formats}, 8 or 16 bits a channel") from None
    except Image.DecompressionBombError:
        raise ImageError(
            f"{path}: is too large to be read whole (the limit is {most // 10**6} megapixels); cut it into patches"
        ) from None
    except PermissionError:
        raise ImageError(f"{path}: may not be read; check its permissions") from None
    except IsADirectoryError:
        raise ImageError(f"{path}: is a folder; give an image file") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        # Pillow's decoders raise any of these, depending on the format and on where the file ends.
        raise ImageError(f"{path}: is truncated or damaged ({error}); copy or export it again") from None
