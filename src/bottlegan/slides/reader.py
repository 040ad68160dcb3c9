"""Whole slides, through OpenSlide: as far as fitting a style needs them, a few tiles of tissue.

OpenSlide is optional, so it is imported where a slide is opened, and nowhere else in the package.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from bottlegan.errors import ImageError, InputError, MissingError
from bottlegan.seeding import numpy_stream
from bottlegan.slides.image import Levels, to_batch
from bottlegan.stain.density import to_density
from bottlegan.stain.macenko import find_tissue

if TYPE_CHECKING:
    from openslide import OpenSlide

SLIDES = frozenset({".bif", ".czi", ".dcm", ".mrxs", ".ndpi", ".scn", ".svs", ".svslide", ".vms", ".vmu"})
"""Suffixes that only slides have; TIFF files must be looked into."""
TIFF = frozenset({".tif", ".tiff"})
WHOLE = 4096  # pixels a side up to which a TIFF of one level is an image like any other, and read whole
MICROMETERS = 1.0  # of a pixel that a style is fitted to: 10x magnification
PLAUSIBLE = (0.02, 20.0)  # micrometers a pixel that a microscope can give; else the file's resolution means nothing
COARSER = 2.8  # downsampling that is aimed at where that is unknown, halfway from 2 to 4
CELLS = 16  # pixels of the thumbnail along a tile
BLOCK = 2048  # pixels a side that are read at once for the thumbnail, which bounds memory
BRIGHTEST = 0.05  # share of a slide that is glass, at least
DARKEST_GLASS = 0.2  # optical density that glass may have; where there is none, pale tissue is not taken for it
MOSTLY, BARELY = 0.5, 0.1  # share of tissue that a tile should have, and that it must have where tissue is scarce


def is_slide(path: Path) -> bool:
    """Return whether a file is to be read as a slide, rather than whole; without OpenSlide no TIFF is."""
    suffix = path.suffix.lower()
    if suffix in SLIDES:
        return True
    if suffix not in TIFF or not path.is_file():
        return False
    try:
        with _open(path) as slide:
            return bool(slide.level_count > 1 or max(slide.dimensions) > WHOLE)
    except InputError:
        return False


def sample_tissue(path: Path, count: int = 16, size: int = 256, seed: int = 0) -> list[Levels]:
    """Return tiles of tissue (size, size, 3), uint8 RGB, that do not overlap and are spread over all tissue.

    A pixel is about 1 micrometer, if the slide says how large its pixels are; else tiles are from the level that is
    about 2 to 4 times coarser than the finest. Transparency is flattened on white.

    Args:
        path: A slide, or any tiled TIFF.
        count: How many tiles; there are fewer if there is less tissue.
        size: Of a tile in pixels.
        seed: Decides which; the same seed gives the same tiles.
    """
    with _open(path) as slide:
        downsample = choose_downsample(slide)
        extent = size * downsample
        thumbnail, pixel = read_thumbnail(slide, extent / CELLS)
        corners = choose_tiles(mask_tissue(thumbnail), extent / pixel, count, seed)
        if not corners:
            raise InputError(f"{path}: no tissue was found on this slide; give one with tissue")
        return [_read_tile(slide, x * extent, y * extent, downsample, size) for x, y in corners]


def choose_downsample(slide: "OpenSlide") -> float:
    """Return by how much to reduce the finest level, at least 1, for pixels of about 1 micrometer."""
    try:
        sides = [float(slide.properties[f"openslide.mpp-{axis}"]) for axis in "xy"]
    except (KeyError, ValueError):
        sides = [math.nan]
    mean = sum(sides) / len(sides)
    # Written so that NaN fails it.
    if PLAUSIBLE[0] <= mean <= PLAUSIBLE[1]:
        return max(1.0, MICROMETERS / mean)
    return min(slide.level_downsamples, key=lambda each: abs(math.log(each / COARSER)))


def read_thumbnail(slide: "OpenSlide", downsample: float) -> tuple[Levels, float]:
    """Return the whole slide (H, W, 3), reduced by about `downsample`, and by how much exactly.

    It is read in blocks: a slide without coarse levels would not fit into memory.
    """
    level = slide.get_best_level_for_downsample(downsample)
    step = slide.level_downsamples[level]
    factor = max(1, round(downsample / step))
    width, height = slide.level_dimensions[level]
    side = max(1, BLOCK // factor) * factor
    thumbnail = np.full((math.ceil(height / factor), math.ceil(width / factor), 3), 255, np.uint8)
    for top in range(0, height, side):
        for left in range(0, width, side):
            box = (min(side, width - left), min(side, height - top))
            block = np.asarray(_read(slide, left * step, top * step, level, box).reduce(factor))
            y, x = top // factor, left // factor
            thumbnail[y : y + block.shape[0], x : x + block.shape[1]] = block
    return thumbnail, factor * step


def mask_tissue(thumbnail: Levels) -> NDArray[np.bool_]:
    """Return where (H, W) tissue is: pixels that are dark, by the vote of their neighbors, so that no dust is."""
    density = to_density(to_batch(thumbnail).double()).flatten(2).transpose(1, 2)
    # Scanners make glass light gray; that there is more of it than of tissue must not make it tissue.
    glass = density.quantile(BRIGHTEST, dim=1, keepdim=True).clamp(max=DARKEST_GLASS)
    mask = find_tissue((density - glass).clamp(min=0))[0].reshape(torch.Size(thumbnail.shape[:2])).numpy()
    return ndimage.uniform_filter(mask.astype(np.float32), size=3, mode="nearest") > 0.5


def choose_tiles(mask: NDArray[np.bool_], side: float, count: int, seed: int) -> list[tuple[int, int]]:
    """Return the columns and rows of at most `count` cells of a grid, all on tissue and spread over it.

    Args:
        mask: Where tissue is, (H, W).
        side: Of a cell in pixels of the mask; the last cells, which would reach beyond it, are left out.
        count: How many.
        seed: Decides which.
    """
    height, width = mask.shape
    across, down = max(1, int(width / side + 0.01)), max(1, int(height / side + 0.01))
    box = (0.0, 0.0, min(across * side, width), min(down * side, height))
    shares = np.asarray(Image.fromarray(mask.astype(np.float32)).resize((across, down), Image.Resampling.BOX, box))
    enough = MOSTLY if (shares >= MOSTLY).sum() >= count else BARELY
    found = sorted(zip(*np.nonzero(shares >= enough), strict=True), key=lambda cell: _along_curve(*map(int, cell)))
    if not found:
        return []
    random = numpy_stream(seed, "tiles")
    # Equal parts of a curve that fills the plane are compact regions: one tile of each covers the tissue evenly.
    parts = np.array_split(np.array(found), min(count, len(found)))
    return [(int(column), int(row)) for row, column in (part[random.integers(len(part))] for part in parts)]


def _along_curve(row: int, column: int) -> int:
    """Return the place of a cell on Morton's curve, which fills the plane quarter by quarter: its bits interleaved."""
    return sum((row >> bit & 1) << 2 * bit + 1 | (column >> bit & 1) << 2 * bit for bit in range(24))


@contextmanager
def _open(path: Path) -> Iterator["OpenSlide"]:
    """Open a slide, and turn what OpenSlide says against it, now or while it is read, into an error of ours."""
    openslide = _import_openslide()
    if not path.exists():
        raise MissingError(f"{path}: there is no such file; check the path")
    try:
        with openslide.OpenSlide(path) as slide:
            yield slide
    except openslide.OpenSlideUnsupportedFormatError:
        raise ImageError(f"{path}: is not a slide that can be read; give one that OpenSlide knows") from None
    except openslide.OpenSlideError as error:
        raise ImageError(f"{path}: is truncated or damaged ({error}); copy or export it again") from None


def _import_openslide() -> Any:
    try:
        import openslide  # noqa: PLC0415 - optional, so only asked for when there is a slide
    except (ImportError, OSError):
        # The second where its Python part is installed but not its library.
        raise MissingError("slides need OpenSlide, which is not installed: pip install 'bottlegan[slides]'") from None
    return openslide


def _read_tile(slide: "OpenSlide", x: float, y: float, downsample: float, size: int) -> Levels:
    """Return a tile (size, size, 3) whose corner is at (x, y) of the finest level, reduced by `downsample`."""
    # A level that is a hair too coarse is meant: downsamplings of levels are rounded.
    level = slide.get_best_level_for_downsample(downsample * 1.01)
    side = max(1, round(size * downsample / slide.level_downsamples[level]))
    image = _read(slide, x, y, level, (side, side))
    return np.asarray(image if side == size else image.resize((size, size), Image.Resampling.BOX))


def _read(slide: "OpenSlide", x: float, y: float, level: int, box: tuple[int, int]) -> Image.Image:
    """Return a region as RGB on white, the color of empty glass."""
    layer = slide.read_region((round(x), round(y)), level, box)
    return Image.alpha_composite(Image.new("RGBA", box, "white"), layer).convert("RGB")
