"""Positions of pixels: regions of a level of a slide, and grids of tiles over them.

Every coordinate is in pixels of the level that is named beside it, never of another level. So nothing is rounded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bottlegan.core.errors import InputError


class Size(NamedTuple):
    """A width and a height in pixels."""

    width: int
    height: int


@dataclass(frozen=True)
class Region:
    """A rectangle of one level of a slide, in pixels of that level."""

    level: int
    x: int
    y: int
    width: int
    height: int

    def shift(self, x: int, y: int, width: int, height: int) -> "Region":
        """Return the rectangle of this size whose corner lies `x` to the right of and `y` below this one's."""
        return Region(self.level, self.x + x, self.y + y, width, height)

    def overlap(self, other: "Region") -> "Region":
        """Return the intersection; its width or height is 0 if it is empty."""
        left, top = max(self.x, other.x), max(self.y, other.y)
        right = min(self.x + self.width, other.x + other.width)
        bottom = min(self.y + self.height, other.y + other.height)
        return Region(self.level, left, top, max(0, right - left), max(0, bottom - top))

    def within(self, outer: "Region") -> tuple[slice, slice]:
        """Return the rows and columns of this region in an array of `outer`."""
        left, top = self.x - outer.x, self.y - outer.y
        return slice(top, top + self.height), slice(left, left + self.width)


@dataclass(frozen=True)
class Grid:
    """Tiles that cover each pixel of a region exactly once. Tiles at the right and lower edge may be smaller."""

    region: Region
    tile: Size

    @property
    def columns(self) -> int:
        """The number of tiles in a row."""
        return -(-self.region.width // self.tile.width)

    @property
    def rows(self) -> int:
        """The number of rows of tiles."""
        return -(-self.region.height // self.tile.height)

    def __len__(self) -> int:
        """Return the number of tiles."""
        return self.columns * self.rows

    def __iter__(self) -> Iterator[Region]:
        """Yield the tiles, row by row."""
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Region:
        """Return a tile by its index in reading order."""
        if not 0 <= index < len(self):
            raise IndexError(f"tile {index} of {len(self)}")
        row, column = divmod(index, self.columns)
        x, y = column * self.tile.width, row * self.tile.height
        width, height = min(self.tile.width, self.region.width - x), min(self.tile.height, self.region.height - y)
        return self.region.shift(x, y, width, height)

    def touching(self, region: Region) -> list[int]:
        """Return the indices of the tiles that overlap a region."""
        x, y, (width, height) = region.x - self.region.x, region.y - self.region.y, self.tile
        right, bottom = min(x + region.width, self.region.width), min(y + region.height, self.region.height)
        if right <= x or bottom <= y:
            return []
        rows, columns = range(max(0, y // height), -(-bottom // height)), range(max(0, x // width), -(-right // width))
        across = self.columns
        return [row * across + column for row in rows for column in columns]


def halve_sizes(size: Size, tile: Size) -> list[Size]:
    """Return the sizes of a pyramid. Each is half of the one before, rounded up, until a level fits into one tile."""
    sizes = [size]
    while sizes[-1].width > tile.width or sizes[-1].height > tile.height:
        sizes.append(Size(-(-sizes[-1].width // 2), -(-sizes[-1].height // 2)))
    return sizes


def parse_region(text: str, level: int) -> Region:
    """Return the region written as X,Y,WIDTH,HEIGHT."""
    try:
        x, y, width, height = (int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--region {text}: is not X,Y,WIDTH,HEIGHT; give four whole numbers, in pixels") from None
    if x < 0 or y < 0 or width < 1 or height < 1:
        raise InputError(f"--region {text}: must begin at 0 or later and be at least 1 pixel wide and high")
    return Region(level, x, y, width, height)
