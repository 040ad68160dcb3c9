"""A BigTIFF file of tiled pages. Its tiles are already compressed and may come in any order.

Writing a pyramid in one pass needs this: tiles of all levels are appended as they are made, and the pages, which list
the position of each tile, follow at the end. Libraries write page after page, and would have to keep the rest.
"""

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO, Literal

from bottlegan.core.errors import InputError
from bottlegan.slides.grid import Grid

TEXT, SHORT, LONG, RATIO, LONG8 = 2, 3, 4, 5, 16  # types of fields
FORMS = {SHORT: "H", LONG: "I", LONG8: "Q"}
OFFSET = 8  # most bytes of a field that fit into its entry

SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, COLORS, DESCRIPTION = 254, 256, 257, 258, 259, 262, 270
SAMPLES, ACROSS, DOWN, PLANAR, UNIT, SOFTWARE = 277, 282, 283, 284, 296, 305
COLORMAP, TILE_WIDTH, TILE_HEIGHT, OFFSETS, LENGTHS, CHILDREN, SUBSAMPLING = 320, 322, 323, 324, 325, 330, 530

JPEG, DEFLATE, GRAY, PALETTE, YCBCR, REDUCED, CENTIMETER = 7, 8, 1, 3, 6, 1, 3  # values of fields
CENTIMETERS = 1e4  # micrometers in one

PixelKind = Literal["color", "classes", "gray"]
"""Content of a tile: JPEG, or deflated bytes that are class ids or gray levels."""
Field = tuple[int, int, bytes]
"""The number of a field, its type, and its values."""


@dataclass
class Page:
    """One level: its grid, the positions of its tiles, and its description."""

    grid: Grid
    mpp: tuple[float, float] | None
    description: str = ""
    subsampling: tuple[int, int] = (1, 1)
    pixels: PixelKind = "color"
    palette: Sequence[Sequence[int]] = ()
    """For classes: the red, green and blue of each of 256 ids, 0 to 255."""
    offsets: "array[int]" = field(init=False)
    lengths: "array[int]" = field(init=False)

    def __post_init__(self) -> None:
        """Start without tiles."""
        self.offsets, self.lengths = (array("Q", bytes(8 * len(self.grid))) for _ in range(2))


class BigTiff:
    """A file that is being written: tiles are appended, and `finish` turns it into a TIFF."""

    def __init__(self, path: Path, name: Path) -> None:
        """Create a file at `path`; errors call it `name`, which it will have later."""
        self.name, self._file, self._end = name, _open(path, name), 0
        self._append(struct.pack("<2sHHHQ", b"II", 43, 8, 0, 0))

    def add(self, page: Page, index: int, data: bytes) -> int:
        """Append the data of a tile, and return its offset."""
        offset = self._append(data)
        self.link(page, index, offset, len(data))
        return offset

    def link(self, page: Page, index: int, offset: int, length: int) -> None:
        """Record where the data of a tile is; several tiles may share the same data."""
        page.offsets[index], page.lengths[index] = offset, length

    def finish(self, pages: Sequence[Page], nested: bool) -> None:
        """Write the pages in sequence or, if `nested`, all others as children of the first."""
        children = [self._write_page(page, k + 1, 0) for k, page in enumerate(pages[1:])] if nested else []
        following = 0
        for k, page in reversed(list(enumerate(pages[:1] if nested else pages))):
            following = self._write_page(page, k, following, children)
        try:
            self._file.seek(8)
            self._file.write(struct.pack("<Q", following))
            self._file.flush()
        except OSError as error:
            raise self._translate(error) from None

    def close(self) -> None:
        """Close the file, finished or not."""
        try:
            self._file.close()
        except OSError as error:  # buffered data may no longer fit
            raise self._translate(error) from None

    def _write_page(self, page: Page, level: int, following: int, children: Sequence[int] = ()) -> int:
        """Write the values of a page's fields and then the page, and return its offset."""
        entries = []
        for number, kind, values in sorted(list_fields(page, level, children)):
            count = len(values) // (8 if kind == RATIO else struct.calcsize(FORMS.get(kind, "B")))
            if len(values) > OFFSET:
                self._align()
                place = struct.pack("<Q", self._append(values))
            else:
                place = values.ljust(OFFSET, b"\0")
            entries.append(struct.pack("<HHQ", number, kind, count) + place)
        self._align()
        return self._append(struct.pack("<Q", len(entries)) + b"".join(entries) + struct.pack("<Q", following))

    def _append(self, data: bytes) -> int:
        start = self._end
        try:
            self._file.write(data)
        except OSError as error:
            raise self._translate(error) from None
        self._end += len(data)
        return start

    def _align(self) -> None:
        self._append(bytes(-self._end % 8))

    def _translate(self, error: OSError) -> InputError:
        return InputError(f"{self.name}: cannot be written ({error.strerror}); choose another place, or make room")


def list_fields(page: Page, level: int, children: Sequence[int]) -> list[Field]:
    """Return the fields of a page."""
    size, tile = page.grid.region, page.grid.tile
    fields = [
        _whole(SUBFILE, LONG, REDUCED if level else 0),
        _whole(WIDTH, LONG, size.width),
        _whole(HEIGHT, LONG, size.height),
        _whole(PLANAR, SHORT, 1),
        _text(SOFTWARE, "bottlegan"),
        _whole(TILE_WIDTH, LONG, tile.width),
        _whole(TILE_HEIGHT, LONG, tile.height),
        _whole(OFFSETS, LONG8, *page.offsets),
        _whole(LENGTHS, LONG8, *page.lengths),
        *_list_samples(page),
    ]
    if page.description:
        fields.append(_text(DESCRIPTION, page.description))
    if page.mpp is not None:
        fields += [_ratio(ACROSS, CENTIMETERS / page.mpp[0]), _ratio(DOWN, CENTIMETERS / page.mpp[1])]
        fields.append(_whole(UNIT, SHORT, CENTIMETER))
    if children:
        fields.append(_whole(CHILDREN, LONG8, *children))
    return fields


def _list_samples(page: Page) -> list[Field]:
    """Return the fields that describe the bytes of a tile."""
    if page.pixels == "color":
        return [
            _whole(BITS, SHORT, 8, 8, 8),
            _whole(COMPRESSION, SHORT, JPEG),
            _whole(COLORS, SHORT, YCBCR),
            _whole(SAMPLES, SHORT, 3),
            _whole(SUBSAMPLING, SHORT, *page.subsampling),
        ]
    fields = [_whole(BITS, SHORT, 8), _whole(COMPRESSION, SHORT, DEFLATE), _whole(SAMPLES, SHORT, 1)]
    if page.pixels == "gray":
        return [*fields, _whole(COLORS, SHORT, GRAY)]
    # All reds, then all greens, then all blues, with 16 bits each.
    shades = [257 * color[channel] for channel in range(3) for color in page.palette]
    return [*fields, _whole(COLORS, SHORT, PALETTE), _whole(COLORMAP, SHORT, *shades)]


def _whole(number: int, kind: int, *values: int) -> Field:
    return number, kind, struct.pack(f"<{len(values)}{FORMS[kind]}", *values)


def _text(number: int, text: str) -> Field:
    return number, TEXT, text.encode() + b"\0"


def _ratio(number: int, value: float) -> Field:
    ratio = Fraction(value).limit_denominator(1000)  # fits into 32 bits; precise to a millionth for scanners' values
    return number, RATIO, struct.pack("<II", ratio.numerator, ratio.denominator)


def _open(path: Path, name: Path) -> BinaryIO:
    try:
        return path.open("wb", buffering=2**20)
    except OSError as error:
        raise InputError(f"{name}: cannot be written ({error.strerror}); choose another place") from None
