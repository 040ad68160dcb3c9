"""Color maps as `.cube` files, the coarse tables that video and color software reads, and their measured error.

A file in the format of Adobe and Resolve holds the mapped colors of a regular grid; readers interpolate between them.
That is never exact, so the comments of each file that we write state the measured error.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bottlegan.colormap.table import Convert
from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.files import check_writable, write_text
from bottlegan.core.seeding import numpy_stream
from bottlegan.imaging.files import Pixels
from bottlegan.stain.style import LABS, draw_style, mix_stains

Floats = NDArray[np.float64]
Intensities = Callable[[Floats], Floats]
"""Maps colors (N, 3) in [0, 1] to colors that are not rounded to levels."""

SIZES = (17, 33, 65)
"""Colors along each side of the tables that we write; other software reads these sizes without resampling."""
LARGEST = 129
"""Colors along each side of the largest table that is read."""
MAX_BYTES = 100 * LARGEST**3
"""Upper bound of the size of such a file, however many digits its numbers have."""
DIGITS = 6
"""Decimals of the numbers in a file: a thousand times as fine as a level."""
LONGEST = 240
"""Most characters of a comment: Adobe's format allows lines of 250."""

SAMPLED = 200_000
"""Number of tissue colors, and of random colors, on which the error of a table is measured."""
SAMPLED_STYLES = 64
"""Number of simulated labs that the tissue colors come from."""

NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Cube:
    """A coarse table of colors."""

    title: str
    grid: Floats
    """(S, S, S, 3) mapped colors, usually in [0, 1], indexed by the red, green and blue of the input."""
    comments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Deviation:
    """The error of a coarse table in levels of 256, after rounding its colors to levels."""

    colors: str
    """The colors on which it was measured."""
    mean: float
    """Mean over colors and channels."""
    largest: int
    """Largest over colors and channels."""
    off: float
    """Share of the colors with a channel that is off by more than one level."""

    def __str__(self) -> str:
        """Return the error as a line of text."""
        return (
            f"{self.colors}: mean {self.mean:.4f} levels, largest {self.largest} levels, "
            f"{100 * self.off:.3f} % of colors off by more than 1 level"
        )


def sample_grid(color_map: Intensities, size: int) -> Floats:
    """Return the mapped colors of a regular grid, (S, S, S, 3), rounded to the digits that a file keeps."""
    check_size(size)
    side = np.arange(size) / (size - 1)
    colors = np.stack(np.meshgrid(side, side, side, indexing="ij"), axis=-1)
    return np.round(color_map(colors.reshape(-1, 3)).reshape(colors.shape), DIGITS)


def check_size(size: int) -> None:
    """Refuse a size that is not in SIZES."""
    if size not in SIZES:
        raise InputError(f"a .cube file can have a size of 17, 33 or 65, got {size}; most software expects 33")


def interpolate(grid: Floats, levels: Pixels) -> Pixels:
    """Return levels (N, 3) mapped by a coarse table: trilinear between the eight surrounding colors, then rounded."""
    place = levels * ((len(grid) - 1) / 255)
    low = np.minimum(place.astype(np.intp), len(grid) - 2)
    share = place - low
    mapped = np.zeros(levels.shape)
    for corner in product((0, 1), repeat=3):
        weight = np.where(corner, share, 1 - share).prod(axis=1, keepdims=True)
        red, green, blue = (low + corner).T
        mapped += weight * grid[red, green, blue]
    return np.rint(255 * mapped.clip(0, 1)).astype(np.uint8)


def measure(grid: Floats, exact: Convert) -> tuple[Deviation, ...]:
    """Return the error of a coarse table against the exact map, on tissue colors and on random colors."""
    sets = {"tissue-like colors": tissue_colors(SAMPLED), "random colors": random_colors(SAMPLED)}
    return tuple(compare(grid, exact, colors, f"{len(colors)} {name}") for name, colors in sets.items())


def compare(grid: Floats, exact: Convert, colors: Pixels, name: str) -> Deviation:
    """Return the error of a coarse table against the exact map on `colors` (N, 3)."""
    apart = np.abs(np.subtract(interpolate(grid, colors), exact(colors), dtype=np.int16))
    return Deviation(name, float(apart.mean()), int(apart.max()), float((apart.max(axis=1) > 1).mean()))


def tissue_colors(count: int) -> Pixels:
    """Return colors (N, 3) of tissue, always the same: mixtures of both stains in the styles of simulated labs."""
    random = numpy_stream(0, "colors of tissue")
    count_per_style = math.ceil(count / SAMPLED_STYLES)
    colors = []
    for index in range(SAMPLED_STYLES):
        style = draw_style(random, str(index), LABS)
        # Most of a slide holds little of either stain; a concentration of 1 is strong.
        colors.append(mix_stains(random.exponential(0.35, (count_per_style, 2)), style))
    return np.concatenate(colors)[:count]


def random_colors(count: int) -> Pixels:
    """Return random colors (N, 3), always the same; each of the 256^3 is equally likely."""
    return numpy_stream(0, "random colors").integers(0, 256, (count, 3), np.uint8)


def check_target(path: Path) -> None:
    """Refuse a path where no `.cube` file can be written, before anything is computed."""
    if path.suffix.lower() != ".cube":
        raise InputError(f"{path}: the name must end in .cube, or other software will not open it; change the name")
    check_writable(path)


def write_cube(path: Path, cube: Cube) -> None:
    """Write a table to `path`, whole or not at all."""
    check_target(path)
    title = _plain(cube.title).replace('"', "'")
    # Comments come first: some readers treat every line after the size as a color.
    lines = [*(f"# {_plain(comment)}" for comment in cube.comments), f'TITLE "{title}"']
    lines += [f"LUT_3D_SIZE {len(cube.grid)}", "DOMAIN_MIN 0.0 0.0 0.0", "DOMAIN_MAX 1.0 1.0 1.0"]
    colors = cube.grid.transpose(2, 1, 0, 3).reshape(-1, 3)  # red is the first to change, then green, then blue
    lines += [f"{red:.{DIGITS}f} {green:.{DIGITS}f} {blue:.{DIGITS}f}" for red, green, blue in colors.tolist()]
    write_text(path, "\n".join(lines) + "\n")


def read_cube(path: Path) -> Cube:
    """Read a three-dimensional table from any software, and check all of it."""
    lines = list(enumerate(_read_lines(path), start=1))
    comments = tuple(line[1:].strip() for _, line in lines if line.startswith("#"))
    content = [(number, line) for number, line in lines if line and not line.startswith("#")]
    header = list(takewhile(lambda numbered: numbered[1][0].isalpha(), content))
    title, size = _read_header(header, path)
    colors = content[len(header) :]
    if len(colors) != size**3:
        mismatch = f"{len(colors)} colors, not the {size**3} of LUT_3D_SIZE {size}"
        raise InputError(f"{path}: has {mismatch}; it may be cut off: copy or export it again")
    values = [_read_numbers(line, 3, f"{path}: line {number}") for number, line in colors]
    grid = np.array(values).reshape(size, size, size, 3).transpose(2, 1, 0, 3)
    return Cube(title, np.ascontiguousarray(grid), comments)


def _read_header(header: Sequence[tuple[int, str]], path: Path) -> tuple[str, int]:
    """Return the title and the size of a table from the numbered lines before its colors."""
    title, size, seen = "", None, set[str]()
    for number, line in header:
        where, (keyword, _, rest) = f"{path}: line {number}", line.partition(" ")
        if keyword in seen:
            raise InputError(f"{where}: `{_shown(keyword)}` appears twice; export the table again")
        seen.add(keyword)
        if keyword == "TITLE":
            title = rest.strip().strip('"')
        elif keyword == "LUT_3D_SIZE":
            size = _read_size(rest, where)
        else:
            _check_domain(keyword, rest, where)
    if size is None:
        raise InputError(f"{path}: no LUT_3D_SIZE before the first color; give a .cube file with a 3D table")
    return title, size


def _read_lines(path: Path) -> Iterable[str]:
    """Return the lines of a text file of bounded size, stripped of surrounding space."""
    if not path.exists():
        raise MissingError(f"{path}: there is no such file; check the path")
    if not path.is_file():
        raise InputError(f"{path}: is not a file; give a .cube file")
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{path}: has more than {MAX_BYTES} bytes, too many for a color table; give a .cube file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not a text file; give a .cube file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    return (line.strip() for line in text.split("\n"))


def _read_size(text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text.strip()) or not 2 <= int(text) <= LARGEST:
        raise InputError(
            f"{where}: LUT_3D_SIZE must be from 2 to {LARGEST}, got {_shown(text)}; export a smaller table"
        )
    return int(text)


def _check_domain(keyword: str, text: str, where: str) -> None:
    """Refuse tables whose colors do not range from 0 to 1, and unknown keywords."""
    domains = {"DOMAIN_MIN": (0.0,) * 3, "DOMAIN_MAX": (1.0,) * 3, "LUT_3D_INPUT_RANGE": (0.0, 1.0)}
    if keyword == "LUT_1D_SIZE":
        raise InputError(f"{where}: holds a curve for each channel (LUT_1D_SIZE); export a 3D table")
    if keyword not in domains:
        raise InputError(f"{where}: unknown keyword `{_shown(keyword)}`; export the table again, as a 3D .cube file")
    if _read_numbers(text, len(domains[keyword]), where) != domains[keyword]:
        raise InputError(f"{where}: colors must range from 0 to 1, got {keyword} {_shown(text)}; export it that way")


def _read_numbers(text: str, count: int, where: str) -> tuple[float, ...]:
    words = text.split()
    if len(words) != count or not all(NUMBER.fullmatch(word) for word in words):
        raise InputError(f"{where}: expected {count} finite numbers, got {_shown(text)}; export the table again")
    numbers = tuple(map(float, words))
    if not all(map(math.isfinite, numbers)):
        raise InputError(f"{where}: a number is too large, got {_shown(text)}; export the table again")
    return numbers


def _plain(text: str) -> str:
    """Return text that any reader accepts: one line of ASCII of limited length."""
    return " ".join(text.split()).encode("ascii", "backslashreplace").decode()[:LONGEST]


def _shown(text: str) -> str:
    """Return text from a file, safe to print in a terminal."""
    shown = "".join(character if character.isprintable() else "?" for character in text.strip())
    return shown if len(shown) <= 60 else shown[:60] + "..."
