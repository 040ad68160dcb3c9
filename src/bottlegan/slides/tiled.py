"""The fast path into TIFF: JPEG tiles are found by their offsets and decoded directly.

This takes a quarter of OpenSlide's time or less. Several threads can do it at once, because they share only the file,
and the decoder releases the GIL.
"""

import logging
import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bottlegan.core.errors import ImageError, MissingError, TileError
from bottlegan.imaging.files import Pixels
from bottlegan.slides.grid import Grid, Region, Size

if TYPE_CHECKING:
    from tifffile import TiffPage

RGB, YCBCR = 2, 6  # TIFF's numbers for the colors of pixels, ...
GRAY = (0, 1)
JPEG = 7  # ... and for their compression

START, END, SCAN = b"\xff\xd8", b"\xff\xd9", 0xDA
NAMED = (0xE0, 0xEE)  # markers of JFIF and Adobe, from which a decoder would guess the channels
ADOBE = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00"  # followed by a byte: 0 for RGB, 1 for YCbCr


@dataclass(frozen=True)
class JpegTiles:
    """The tiles of one level: their positions in the file, and the data needed to decode them."""

    grid: Grid
    offsets: "array[int]"
    lengths: "array[int]"
    head: bytes
    """Put before the data of each tile: the meaning of its channels, and the tables that all tiles share."""

    def find(self, region: Region) -> list[int]:
        """Return the tiles of a region. Returns none if one is not in the file: scanners may omit empty glass."""
        whole = self.grid.region
        if region.x + region.width > whole.width or region.y + region.height > whole.height:
            return []
        touched = self.grid.touching(region)
        return touched if all(self.lengths[index] for index in touched) else []

    def read(self, file: int, region: Region, touched: Sequence[int]) -> Pixels:
        """Return a region (H, W, 3) that consists of these tiles, from an open file descriptor."""
        if len(touched) == 1:
            return self._cut(file, touched[0], region)
        output = np.empty((region.height, region.width, 3), np.uint8)
        for index in touched:
            part = self.grid[index].overlap(region)
            output[part.within(region)] = self._cut(file, index, part)
        return output

    def _cut(self, file: int, index: int, part: Region) -> Pixels:
        """Return a part of a tile."""
        tile = self.grid[index]
        levels = self._decode(os.pread(file, self.lengths[index], self.offsets[index]), tile)
        whole = (part.width, part.height) == self.grid.tile
        return levels if whole else np.ascontiguousarray(levels[part.within(tile)])

    def _decode(self, data: bytes, tile: Region) -> Pixels:
        import simplejpeg  # noqa: PLC0415 - optional, so only asked for when there is a slide

        try:
            levels: Pixels = simplejpeg.decode_jpeg(self.head + strip_names(data), "RGB")
        except ValueError as error:
            raise TileError(f"the tile at {tile.x}, {tile.y} of level {tile.level} is damaged ({error})") from None
        if levels.shape[:2] != (self.grid.tile.height, self.grid.tile.width):
            raise TileError(f"the tile at {tile.x}, {tile.y} of level {tile.level} has the wrong size")
        return levels


def read_tiff(path: Path, levels: Sequence[Size]) -> tuple[str, dict[int, JpegTiles]]:
    """Return the compression of a TIFF, and the tiles of the levels that can be decoded directly.

    Args:
        path: The file. It is refused if its pixels are not RGB with 8 bits per channel, or if its end is missing.
        levels: The sizes of its levels.
    """
    with _open(path) as file:
        check_pages(file, path)
        return str(file.pages[0].compression.name), find_jpeg_tiles(file, levels)


def find_jpeg_tiles(file: Any, levels: Sequence[Size]) -> dict[int, JpegTiles]:
    """Return the tiles of an open TIFF by level, for the levels (of these sizes) that can be decoded directly."""
    try:
        import simplejpeg  # noqa: F401, PLC0415 - without it, there is no fast path
    except ImportError:
        return {}
    tiles_by_level: dict[int, JpegTiles] = {}
    for page in file.pages:
        size = Size(page.imagewidth, page.imagelength)
        level = next((k for k, known in enumerate(levels) if known == size and k not in tiles_by_level), None)
        if level is None or not _is_direct(page):
            continue
        grid = Grid(Region(level, 0, 0, *size), Size(page.tilewidth, page.tilelength))
        if len(page.dataoffsets) == len(grid):
            head = make_head(page.jpegtables or b"", page.photometric == RGB)
            offsets, lengths = (array("Q", numbers) for numbers in (page.dataoffsets, page.databytecounts))
            tiles_by_level[level] = JpegTiles(grid, offsets, lengths, head)
    return tiles_by_level


def check_pages(file: Any, path: Path) -> None:
    """Refuse an open TIFF whose pixels are not RGB with 8 bits per channel, or whose end is missing."""
    length = path.stat().st_size
    if not len(file.pages):
        raise ImageError(f"{path}: is truncated or damaged (it has no image); copy or export it again")
    page: Any = file.pages[0]
    if page.photometric in GRAY or page.samplesperpixel < 3:
        raise ImageError(f"{path}: is grayscale, but stains differ by color; give the slide in RGB")
    if page.bitspersample != 8:
        raise ImageError(f"{path}: has {page.bitspersample} bits a channel; export the slide with 8")
    for page in file.pages:
        ends = np.add(page.dataoffsets, page.databytecounts, dtype=np.int64)
        if lost := int((ends > length).sum()):
            raise ImageError(
                f"{path}: is truncated or damaged ({lost} of {len(ends)} tiles lie beyond its end); copy it again"
            )


def make_head(tables: bytes, rgb: bool) -> bytes:
    """Return the bytes to put before a tile's data. They name the TIFF's channels; markers in the data may not."""
    return START + ADOBE + (b"\0" if rgb else b"\1") + strip_names(tables).removesuffix(END)


def strip_names(data: bytes) -> bytes:
    """Return JPEG data without its first marker, and without markers that name its channels."""
    kept, place = [], len(START)
    while data[place : place + 1] == b"\xff" and place + 4 <= len(data) and data[place + 1] != SCAN:
        after = place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        if data[place + 1] not in NAMED:
            kept.append(data[place:after])
        place = after
    return b"".join([*kept, data[place:]])


def _is_direct(page: "TiffPage") -> bool:
    """Return whether the tiles of a page are JPEG with three interleaved channels of 8 bits."""
    form = (page.compression, page.bitspersample, page.samplesperpixel, page.planarconfig)
    return bool(page.is_tiled and form == (JPEG, 8, 3, 1) and page.photometric in (RGB, YCBCR))


def import_tifffile() -> Any:
    """Return tifffile, which is optional and therefore imported only for a slide."""
    try:
        import tifffile  # noqa: PLC0415 - as above
    except ImportError:
        raise MissingError("slides need tifffile, which is not installed: pip install 'bottlegan[slides]'") from None
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # our errors report damaged tags
    return tifffile


def _open(path: Path) -> Any:
    tifffile = import_tifffile()
    try:
        return tifffile.TiffFile(path)
    except (tifffile.TiffFileError, ValueError, IndexError, KeyError, OSError) as error:
        raise ImageError(f"{path}: is truncated or damaged ({error}); copy or export it again") from None
