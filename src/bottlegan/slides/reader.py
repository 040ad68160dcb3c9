"""Slides, read level by level: through OpenSlide, directly where a TIFF has JPEG tiles, or whole as an image.

OpenSlide is optional, so it is imported where a slide is opened, and nowhere else in the package. It provides the
levels and the size of pixels of every slide that it opens.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from PIL import Image

from bottlegan.core.errors import ImageError, InputError, MissingError, TileError
from bottlegan.core.files import check_readable
from bottlegan.imaging.files import FORMATS, Pixels, read_image
from bottlegan.slides.grid import Grid, Region, Size
from bottlegan.slides.tiled import JpegTiles, read_tiff

if TYPE_CHECKING:
    from openslide import OpenSlide

SLIDES = frozenset({".bif", ".czi", ".dcm", ".mrxs", ".ndpi", ".scn", ".svs", ".svslide", ".vms", ".vmu"})
"""Suffixes that only slides have. TIFF files must be opened to find out."""
TIFF = frozenset({".tif", ".tiff"})
PLAIN_TIFF = frozenset({"aperio", "generic-tiff"})
"""OpenSlide's names for the kinds of TIFF whose levels are pages of tiles, without gaps or overlaps."""
WHOLE = 4096  # a TIFF with one level of at most this many pixels a side is an ordinary image, and read whole
LEAST_TILE, MOST_TILE = 64, 1024  # range of the side, in pixels, of tiles that keep their size from the file
TILE = 512  # side of tiles, in pixels, if the file's are outside that range
MEASURED = (1e-3, 1e4)  # plausible range of micrometers per pixel; resolutions of 0 and infinity occur


class UnknownFormatError(ImageError):
    """OpenSlide does not recognize the format of a file."""


class Slide(Protocol):
    """An open slide. Several threads may read at once."""

    path: Path
    levels: tuple[Size, ...]
    """The size of each level, the finest first."""
    mpp: tuple[float, float] | None
    """Micrometers per pixel of the finest level, across and down, if the slide states them."""
    icc: bytes | None
    """The color profile, if the slide has one."""
    kind: str
    """The format and, if known, the compression of the tiles."""
    direct: frozenset[int]
    """The levels whose tiles are decoded directly, without OpenSlide."""

    def tile(self, level: int) -> Size:
        """Return the best size of tiles for reading a level."""
        ...

    def read(self, region: Region) -> Pixels:
        """Return a region (H, W, 3), uint8 RGB. Where the slide has no pixels it is white, like empty glass."""
        ...


class Broken(NamedTuple):
    """A part of a slide that cannot be read, and the reason."""

    region: Region
    error: TileError


def is_slide(path: Path) -> bool:
    """Return whether to read a file as a slide rather than as an image. Without OpenSlide, no TIFF is a slide."""
    suffix = path.suffix.lower()
    if suffix in SLIDES:
        return True
    if suffix not in TIFF or not path.is_file():
        return False
    try:
        with _translating(path), _import_openslide().OpenSlide(path) as slide:
            return bool(slide.level_count > 1 or max(slide.dimensions) > WHOLE)
    except InputError:
        return False


def list_slides(folder: Path) -> list[Path]:
    """Return the slides in a folder, by name, without hidden files."""
    return [file for file in list_files(folder) if is_slide(file)]


def list_files(folder: Path) -> list[Path]:
    """Return the files in a folder, by name, without hidden ones."""
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


@contextmanager
def open_slide(path: Path) -> Iterator[Slide]:
    """Open a slide, or an image as a slide of one level."""
    suffix = path.suffix.lower()
    if suffix in FORMATS and suffix not in TIFF:
        yield PlainImage(path)
        return
    openslide = _import_openslide()
    check_readable(path)
    try:
        with _translating(path):
            slide = OpenedSlide(path, openslide)
    except UnknownFormatError:
        if suffix not in TIFF:
            raise
        yield PlainImage(path)
        return
    try:
        yield slide
    finally:
        slide.close()


def measure_downsample(slide: Slide, level: int) -> float:
    """Return how many pixels of the finest level, along a side, make one pixel of the level."""
    finest, size = slide.levels[0], slide.levels[level]
    return (finest.width / size.width + finest.height / size.height) / 2


def read_all_but_broken(slide: Slide, region: Region) -> tuple[Pixels, list[Broken]]:
    """Return a region, and the parts of it that cannot be read, which are white."""
    try:
        return slide.read(region), []
    except TileError as error:
        first = error
    output = np.full((region.height, region.width, 3), 255, np.uint8)
    tiles = Grid(region, slide.tile(region.level))
    if len(tiles) == 1:
        return output, [Broken(region, first)]
    broken: list[Broken] = []
    for tile in tiles:
        output[tile.within(region)], lost = read_all_but_broken(slide, tile)
        broken += lost
    return output, broken


class PlainImage:
    """An image as a slide of one level, held in memory."""

    def __init__(self, path: Path) -> None:
        """Read the image."""
        self.path, self._image = path, read_image(path)
        height, width = self._image.shape[:2]
        self.levels: tuple[Size, ...] = (Size(width, height),)
        self.mpp: tuple[float, float] | None = None
        self.icc: bytes | None = None
        self.kind, self.direct = "image", frozenset[int]()

    def tile(self, level: int) -> Size:
        """Return the best size of tiles for reading."""
        return Size(TILE, TILE)

    def read(self, region: Region) -> Pixels:
        """Return a region (H, W, 3), uint8 RGB; white beyond the image."""
        whole = Region(0, 0, 0, *self.levels[0])
        part = region.overlap(whole)
        output = np.full((region.height, region.width, 3), 255, np.uint8)
        output[part.within(region)] = self._image[part.within(whole)]
        return output


class OpenedSlide:
    """A slide that OpenSlide opens. JPEG tiles of a TIFF are decoded directly, everything else by OpenSlide."""

    def __init__(self, path: Path, openslide: Any) -> None:
        """Open the slide, and find the tiles that can be decoded directly."""
        self.path, self._openslide, self._lock = path, openslide, Lock()
        self._slide: OpenSlide = self._openslide.OpenSlide(path)
        properties = self._slide.properties
        self.levels = tuple(Size(*size) for size in self._slide.level_dimensions)
        self.mpp = _read_mpp(properties)
        profile = self._slide.color_profile
        self.icc = None if profile is None else profile.tobytes()
        self.kind = str(properties.get("openslide.vendor"))
        self._tiles: dict[int, JpegTiles] = {}
        if self.kind in PLAIN_TIFF:
            compression, self._tiles = read_tiff(path, self.levels)
            self.kind += f", {compression}"
        self.direct = frozenset(self._tiles)
        self._file = os.open(path, os.O_RDONLY)

    def close(self) -> None:
        """Close the file."""
        self._slide.close()
        os.close(self._file)

    def tile(self, level: int) -> Size:
        """Return the best size of tiles for reading a level: the size of its own tiles, unless that is extreme."""
        properties = self._slide.properties
        try:
            sides = [int(properties[f"openslide.level[{level}].tile-{side}"]) for side in ("width", "height")]
        except (KeyError, ValueError):
            return Size(TILE, TILE)
        fits = all(LEAST_TILE <= side <= MOST_TILE and side % 16 == 0 for side in sides)
        return Size(*sides) if fits else Size(TILE, TILE)

    def read(self, region: Region) -> Pixels:
        """Return a region (H, W, 3), uint8 RGB. Where the slide has no pixels it is white, like empty glass."""
        tiles = self._tiles.get(region.level)
        try:
            if tiles is not None and (touched := tiles.find(region)):
                return tiles.read(self._file, region, touched)
            return self._read_through(region)
        except TileError as error:
            raise TileError(f"{self.path}: is truncated or damaged: {error}; copy or export it again") from None

    def _read_through(self, region: Region) -> Pixels:
        """Return a region, read by OpenSlide."""
        shared = self._slide
        try:
            return self._read_with(shared, region)
        except self._openslide.OpenSlideError:
            # After one failure OpenSlide refuses every request, also from other threads. So a fresh one takes its
            # place, and another finds out whether this region is unreadable.
            with self._lock:
                if self._slide is shared:
                    self._slide = self._openslide.OpenSlide(self.path)
        try:
            with self._openslide.OpenSlide(self.path) as own:
                return self._read_with(own, region)
        except self._openslide.OpenSlideError as error:
            where = f"{region.x}, {region.y} of level {region.level}"
            raise TileError(f"the tile at {where} cannot be read ({error})") from None

    def _read_with(self, slide: "OpenSlide", region: Region) -> Pixels:
        step, box = measure_downsample(self, region.level), (region.width, region.height)
        layer = slide.read_region((round(region.x * step), round(region.y * step)), region.level, box)
        return np.asarray(Image.alpha_composite(Image.new("RGBA", box, "white"), layer).convert("RGB"))


def _read_mpp(properties: Any) -> tuple[float, float] | None:
    try:
        x, y = (float(properties[f"openslide.mpp-{axis}"]) for axis in "xy")
    except (KeyError, ValueError):
        return None
    low, high = MEASURED
    return (x, y) if all(math.isfinite(side) and low <= side <= high for side in (x, y)) else None


@contextmanager
def _translating(path: Path) -> Iterator[None]:
    """Turn OpenSlide's errors about a file into ours."""
    openslide = _import_openslide()
    try:
        yield
    except openslide.OpenSlideUnsupportedFormatError:
        raise UnknownFormatError(f"{path}: is not a slide that can be read; give one that OpenSlide supports") from None
    except openslide.OpenSlideError as error:
        raise ImageError(f"{path}: is truncated or damaged ({error}); copy or export it again") from None


def _import_openslide() -> Any:
    try:
        import openslide  # noqa: PLC0415 - optional, so only asked for when there is a slide
    except (ImportError, OSError):
        # The second is raised if the Python package is installed but the library is not.
        raise MissingError("slides need OpenSlide, which is not installed: pip install 'bottlegan[slides]'") from None
    return openslide
