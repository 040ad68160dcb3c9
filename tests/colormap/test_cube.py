from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image, ImageFilter
from scipy.interpolate import RegularGridInterpolator

from bottlegan.colormap.cube import (
    LONGEST,
    SIZES,
    Cube,
    Floats,
    compare,
    interpolate,
    measure,
    random_colors,
    read_cube,
    sample_grid,
    tissue_colors,
    write_cube,
)
from bottlegan.core.errors import InputError
from bottlegan.imaging.files import Pixels

COLORS = arrays.arrays(np.uint8, st.tuples(st.integers(1, 9), st.just(3)))


def bend(colors: Floats) -> Floats:
    """A map that treats each channel differently."""
    red, green, blue = colors.T
    return np.stack([red**2, 0.5 * green + 0.3 * red, 0.9 - 0.6 * blue], axis=1)


def exactly(levels: Pixels) -> Pixels:
    return np.rint(255 * bend(levels / 255)).astype(np.uint8)


def written(tmp_path: Path, size: int = 17, **change: object) -> Path:
    path = tmp_path / "t.cube"
    write_cube(path, replace(Cube("a title", sample_grid(bend, size), ("one", "two: 2")), **change))  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("size", SIZES[:2])
def test_a_file_gives_back_the_same_table(size: int, tmp_path: Path) -> None:
    path = written(tmp_path, size)
    back = read_cube(path)
    assert (back.title, back.comments) == ("a title", ("one", "two: 2"))
    assert back.grid.shape == (size, size, size, 3)
    assert np.array_equal(back.grid, sample_grid(bend, size))  # to the last bit, so that the measured error holds
    assert np.abs(back.grid[3, 5, 7] - bend(np.array([[3, 5, 7]]) / (size - 1))).max() < 1e-6


def test_the_format_is_what_others_expect(tmp_path: Path) -> None:
    lines = written(tmp_path).read_text().splitlines()
    assert lines[:6] == [
        "# one",
        "# two: 2",
        'TITLE "a title"',
        "LUT_3D_SIZE 17",
        "DOMAIN_MIN 0.0 0.0 0.0",
        "DOMAIN_MAX 1.0 1.0 1.0",
    ]
    assert len(lines) == 6 + 17**3
    # Red is the first to change, then green, then blue.
    for row, color in ((0, (0, 0, 0)), (1, (1, 0, 0)), (17, (0, 1, 0)), (17 * 17, (0, 0, 1))):
        assert np.allclose(np.array(lines[6 + row].split(), float), bend(np.array([color]) / 16), atol=1e-6)


def test_other_software_makes_of_a_file_what_we_do(tmp_path: Path) -> None:
    values = np.loadtxt(written(tmp_path, 33).read_text().splitlines()[6:])
    colors = random_colors(1000)
    theirs = Image.fromarray(colors[None]).filter(ImageFilter.Color3DLUT(33, values.ravel().tolist()))
    ours = interpolate(read_cube(tmp_path / "t.cube").grid, colors)
    assert np.abs(np.subtract(np.asarray(theirs)[0], ours, dtype=int)).max() <= 1  # it computes with 16 bits
    assert (np.asarray(theirs)[0] == ours).mean() > 0.9


@given(COLORS)
def test_interpolation_is_trilinear(colors: Pixels) -> None:
    grid = np.random.default_rng(0).random((5, 5, 5, 3))
    theirs = RegularGridInterpolator((np.linspace(0, 255, 5),) * 3, grid)(colors)
    assert np.abs(interpolate(grid, colors) - 255 * theirs).max() <= 0.5 + 1e-9


@given(COLORS)
def test_an_identity_stays_one_and_what_is_out_of_range_is_cut_off(colors: Pixels) -> None:
    assert np.array_equal(interpolate(sample_grid(lambda given: given, 17), colors), colors)
    assert interpolate(np.full((2, 2, 2, 3), 1.5), colors).min() == 255
    assert interpolate(np.full((2, 2, 2, 3), -1.5), colors).max() == 0


def test_deviations_are_counted_right() -> None:
    grid = sample_grid(lambda given: given, 17)
    colors = np.array([[10, 20, 30], [50, 60, 70], [90, 100, 110], [7, 7, 7]], np.uint8)
    shift = np.array([[0, 0, 0], [0, 1, 0], [-2, 0, 0], [1, 1, 9]])
    found = compare(grid, lambda given: (given + shift).astype(np.uint8), colors, "four")
    assert (found.mean, found.largest, found.off) == (14 / 12, 9, 0.5)
    assert str(found) == "four: mean 1.1667 levels, largest 9 levels, 50.000 % of colors off by more than 1 level"


def test_finer_tables_are_closer_on_both_sets_of_colors() -> None:
    coarse, fine = (measure(sample_grid(bend, size), exactly) for size in (17, 65))
    assert [each.colors for each in fine] == ["200000 tissue-like colors", "200000 random colors"]
    assert all(a.mean < b.mean for a, b in zip(fine, coarse, strict=True))
    assert all(each.largest <= 1 for each in fine)


def test_the_colors_it_is_measured_on() -> None:
    tissue, anything = tissue_colors(10_000), random_colors(10_000)
    assert (tissue.shape, anything.shape) == ((10_000, 3), (10_000, 3))
    assert np.array_equal(tissue_colors(10_000), tissue)
    assert np.median(tissue, axis=0)[1] < np.median(tissue, axis=0).min() + 1  # both stains absorb green most
    assert np.abs(anything.mean(axis=0) - 127.5).max() < 3


def test_what_a_reader_might_stumble_over_is_made_plain(tmp_path: Path) -> None:
    path = written(tmp_path, title='Köln "3"\nLUT_3D_SIZE 9', comments=("a\nDOMAIN_MIN 9 9 9", "x" * 400))
    assert path.read_bytes().isascii()
    assert max(map(len, path.read_text().splitlines())) <= LONGEST + 2
    back = read_cube(path)
    assert back.title == "K\\xf6ln '3' LUT_3D_SIZE 9"
    assert len(back.grid) == 17


SMALL = "LUT_3D_SIZE 2\n" + "0 0.5 1\n" * 8


def test_tables_of_other_software_are_read(tmp_path: Path) -> None:
    path = tmp_path / "other.cube"
    text = '\ufeff#Made elsewhere\r\n\r\nTITLE "x"\r\nLUT_3D_INPUT_RANGE 0.0 1.0\r\nLUT_3D_SIZE 2\r\n'
    path.write_text(text + "-1e-3 .5 1.\r\n" * 7 + "# in between\r\n 2 +3 4 \r\n", encoding="utf-8", newline="")
    cube = read_cube(path)
    assert (cube.title, cube.comments) == ("x", ("Made elsewhere", "in between"))
    assert cube.grid[0, 0, 0].tolist() == [-1e-3, 0.5, 1]
    assert cube.grid[1, 1, 1].tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no LUT_3D_SIZE"),
        ("0 0 0\n" + SMALL, "no LUT_3D_SIZE before the first color"),
        ("LUT_1D_SIZE 2\n0 0 0\n1 1 1\n", "line 1: holds a curve"),
        ("LUT_3D_SIZE 1\n0 0 0\n", "line 1: LUT_3D_SIZE must be from 2 to 129, got 1"),
        ("LUT_3D_SIZE 130\n", "from 2 to 129, got 130"),
        ("LUT_3D_SIZE " + "9" * 5000, r"got 9{60}\.\.\.;"),
        ("LUT_3D_SIZE\n", "from 2 to 129, got ;"),
        ("LUT_3D_SIZE 2.0\n", "got 2.0"),
        ("LUT_3D_SIZE ²\n", "got ²"),
        ("LUT_3D_SIZE 2\n" + SMALL, "line 2: `LUT_3D_SIZE` appears twice"),
        ("DOMAIN_MAX 255 255 255\n" + SMALL, "line 1: colors must range from 0 to 1, got DOMAIN_MAX 255 255 255"),
        ("DOMAIN_MIN 0 0\n" + SMALL, "line 1: expected 3 finite numbers, got 0 0"),
        ("LUT_3D_INPUT_RANGE 0 4\n" + SMALL, "got LUT_3D_INPUT_RANGE 0 4"),
        ("SHAPER 3\n" + SMALL, "line 1: unknown keyword `SHAPER`"),
        (SMALL[:-8], "has 7 colors, not the 8 of LUT_3D_SIZE 2; it may be cut off"),
        (SMALL + "0 0 0\n", "has 9 colors, not the 8"),
        (SMALL[:-8] + "TITLE x\n", "line 9: expected 3 finite numbers, got TITLE x"),
        (SMALL[:-8] + "0 0.5\n", "line 9: expected 3 finite numbers, got 0 0.5"),
        (SMALL[:-8] + "0 nan 1\n", "line 9: expected 3 finite numbers, got 0 nan 1"),
        (SMALL[:-8] + "0 1_0 1\n", "got 0 1_0 1"),
        (SMALL[:-8] + "0 1e999 1\n", "line 9: a number is too large, got 0 1e999 1"),
        (SMALL[:-8] + "0 \x1b[31m 1\n", r"got 0 \?\[31m 1"),
    ],
)
def test_a_broken_file_is_named_with_a_remedy(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "b.cube"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as error:
        read_cube(path)
    assert str(error.value).startswith(f"{path}: ")
    assert ";" in str(error.value)
    assert str(error.value).isprintable()


def test_what_is_no_text_or_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b.cube").write_bytes(b"\x89PNG\xff\xfe")
    for name, message in (("b.cube", "not a text file"), ("gone.cube", "no such file"), ("", "is not a file")):
        with pytest.raises(InputError, match=message):
            read_cube(tmp_path / name)
    monkeypatch.setattr("bottlegan.colormap.cube.MAX_BYTES", 5)
    with pytest.raises(InputError, match="more than 5 bytes"):
        read_cube(tmp_path / "b.cube")


def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    cube = Cube("x", np.zeros((2, 2, 2, 3)))
    (tmp_path / "folder.cube").mkdir()
    for name, message in (
        ("t.txt", "must end in .cube"),
        ("folder.cube", "is a folder"),
        ("gone/t.cube", "no such folder"),
    ):
        with pytest.raises(InputError, match=message):
            write_cube(tmp_path / name, cube)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.cube"]
    with pytest.raises(InputError, match="17, 33 or 65, got 16"):
        sample_grid(bend, 16)
