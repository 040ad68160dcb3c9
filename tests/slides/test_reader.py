import functools
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from bottlegan.core.errors import ImageError, InputError, MissingError
from bottlegan.imaging.files import Pixels, write_image
from bottlegan.imaging.tensors import from_batch
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.slides.reader import is_slide, open_slide
from bottlegan.slides.tissue import choose_tiles, mask_ink, mask_tissue, sample_tissue
from bottlegan.stain.style import REFERENCE

GLASS = 238


def sample(path: Path, *form: int, **options: int) -> list[Pixels]:
    """Open a slide and return tiles of its tissue."""
    with open_slide(path) as slide:
        return sample_tissue(slide, *form, **options)


@pytest.fixture(scope="module")
def tifffile() -> object:
    pytest.importorskip("openslide", reason="OpenSlide is not installed: pip install 'bottlegan[slides]'")
    return pytest.importorskip("tifffile", reason="tifffile, which writes the slides, is not installed")


def write_slide(
    tifffile: object, path: Path, levels: Pixels, mpp: float | None = 0.5, pyramid: int = 3, **options: object
) -> Path:
    """Write a pyramid, each level half of the one before, as tiled TIFF."""
    resolution = {} if mpp is None else {"resolution": (1e4 / mpp, 1e4 / mpp), "resolutionunit": "CENTIMETER"}
    with tifffile.TiffWriter(path) as file:  # type: ignore[attr-defined]
        for k in range(pyramid):
            part = levels[:: 2**k, :: 2**k]
            reduced = {"subfiletype": 1} if k else {}
            file.write(part, tile=(128, 128), photometric="rgb", metadata=None, **resolution, **reduced, **options)
    return path


@functools.cache
def draw_slide() -> Pixels:
    """Return 2048 x 1536 px of gray glass with two pieces of tissue, 640 px each, far apart."""
    levels = np.full((1536, 2048, 3), GLASS, np.uint8)
    for index, (top, left) in enumerate(((64, 64), (832, 1344))):
        tissue = from_batch(render(draw_tissue(4, index, 640).concentration[None] + 0.1, REFERENCE))[0]
        levels[top : top + 640, left : left + 640] = np.minimum(tissue, GLASS)
    return levels


@pytest.fixture(scope="module")
def slide(tifffile: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_slide(tifffile, tmp_path_factory.mktemp("slide") / "two.tiff", draw_slide())


def place(tile: Pixels, level: Pixels) -> tuple[int, int]:
    """Return the row and column of the cell of a level that a tile shows."""
    side = len(tile)
    cells = [(y, x) for y in range(0, len(level), side) for x in range(0, level.shape[1], side)]
    (found,) = (cell for cell in cells if np.array_equal(level[cell[0] :, cell[1] :][:side, :side], tile))
    return found


def test_tiles_are_tissue_of_both_pieces_and_do_not_overlap(slide: Path) -> None:
    tiles = sample(slide, count=12, size=64)
    assert len(tiles) == 12
    assert all(tile.shape == (64, 64, 3) and tile.dtype == np.uint8 for tile in tiles)
    # Half a micrometer a pixel, so 1 micrometer is the second level.
    where = [place(tile, draw_slide()[::2, ::2]) for tile in tiles]
    assert len(set(where)) == 12
    assert {(y < 384, x < 512) for y, x in where} == {(True, True), (False, False)}
    assert max(np.mean(tile.astype(int).min(2) > GLASS - 8) for tile in tiles) < 0.6


def test_the_seed_decides_which(slide: Path) -> None:
    first, again, other = (sample(slide, count=4, size=64, seed=seed) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any((a != b).any() for a, b in zip(first, other, strict=True))


def test_a_pixel_is_one_micrometer(tifffile: object, tmp_path: Path) -> None:
    levels = draw_slide()
    for mpp, covered in ((0.5, 2), (1.0, 1), (2.0, 1), (0.25, 4)):
        path = write_slide(tifffile, tmp_path / f"{mpp}.tiff", levels, mpp)
        (tile,) = sample(path, count=1, size=64)
        place(tile, levels[::covered, ::covered])


def test_without_a_size_of_pixels_the_level_that_is_a_little_coarser_is_read(tifffile: object, tmp_path: Path) -> None:
    levels = np.full((512, 512, 3), (200, 100, 150), np.uint8)
    levels[::2, ::2] = (120, 60, 130)  # the second level shows only these pixels
    levels[::4, ::4] = (60, 20, 90)  # the third level shows only these
    three = write_slide(tifffile, tmp_path / "three.tiff", levels, mpp=None)
    one = write_slide(tifffile, tmp_path / "one.tiff", levels, mpp=None, pyramid=1)
    absurd = write_slide(tifffile, tmp_path / "absurd.tiff", levels, mpp=353.0)
    for path in (three, absurd):
        assert {tuple(color) for color in sample(path, 1, 64)[0].reshape(-1, 3).tolist()} <= {
            (120, 60, 130),
            (60, 20, 90),
        }
    assert (200, 100, 150) in {tuple(color) for color in sample(one, 1, 64)[0].reshape(-1, 3).tolist()}


def test_a_slide_smaller_than_a_tile_is_one_tile(tifffile: object, tmp_path: Path) -> None:
    levels = np.full((150, 200, 3), (180, 90, 140), np.uint8)
    (tile,) = sample(write_slide(tifffile, tmp_path / "small.tiff", levels, mpp=None, pyramid=1))
    assert tile.shape == (256, 256, 3)
    assert (tile[:150, :200] == (180, 90, 140)).all()
    assert (tile[150:] == 255).all()


def test_a_slide_without_coarse_levels_is_read_in_blocks(
    tifffile: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_slide(tifffile, tmp_path / "flat.tiff", draw_slide(), pyramid=1)
    whole = sample(path, 12, 64)
    monkeypatch.setattr("bottlegan.slides.tissue.BLOCK", 100)
    assert all((a == b).all() for a, b in zip(whole, sample(path, 12, 64), strict=True))


def test_blank_glass_has_no_tissue(tifffile: object, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(-3, 4, (1024, 1024, 3))
    path = write_slide(tifffile, tmp_path / "blank.tiff", (GLASS + noise).astype(np.uint8))
    with pytest.raises(InputError, match="no tissue was found"):
        sample(path)


def test_dust_is_not_tissue() -> None:
    thumbnail = np.full((40, 40, 3), 255, np.uint8)
    thumbnail[10:20, 10:20] = thumbnail[30, 30] = 120
    mask = mask_tissue(thumbnail)
    assert mask[11:19, 11:19].all()
    assert not mask[25:].any()


def test_scarce_tissue_gives_the_tiles_that_there_are() -> None:
    mask = np.zeros((64, 64), bool)
    mask[:, 20:24] = True  # a quarter of each of four cells
    none = np.zeros((64, 64), bool)
    assert sorted(choose_tiles(mask, none, 16, 16, seed=0)) == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert choose_tiles(none, none, 16, 16, seed=0) == []
    ink = none.copy()
    ink[20, 30] = True  # beside the tissue, but in its cell
    assert sorted(choose_tiles(mask, ink, 16, 16, seed=0)) == [(1, 0), (1, 2), (1, 3)]
    assert sorted(choose_tiles(mask, ~none, 16, 16, seed=0)) == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_pen_is_told_from_tissue_unless_most_is_like_it() -> None:
    overview = np.full((40, 40, 3), 240, np.uint8)
    overview[5:15] = (200, 100, 160)  # eosin and hematoxylin
    overview[15:20] = (110, 90, 170)
    assert not mask_ink(overview).any()
    for ink in ((20, 120, 60), (30, 60, 170), (230, 220, 60), (120, 200, 150)):
        overview[25:28] = ink
        assert mask_ink(overview)[25:28].all()
        assert not mask_ink(overview)[:25].any()
    overview[5:20] = (120, 200, 150)
    assert not mask_ink(overview).any()


def test_what_is_a_slide(slide: Path, tifffile: object, tmp_path: Path) -> None:
    assert is_slide(slide)
    assert is_slide(Path("gone.svs"))
    assert not is_slide(Path("gone.tif"))
    picture = np.full((64, 64, 3), 200, np.uint8)
    for name in ("a.png", "a.tif"):
        write_image(tmp_path / name, picture)
        assert not is_slide(tmp_path / name)
    assert not is_slide(write_slide(tifffile, tmp_path / "patch.tif", picture, pyramid=1))
    wide = np.full((16, 5000, 3), 200, np.uint8)
    assert is_slide(write_slide(tifffile, tmp_path / "wide.tif", wide, pyramid=1))


def test_what_cannot_be_read_is_named_in_one_line(slide: Path, tifffile: object, tmp_path: Path) -> None:
    (tmp_path / "text.svs").write_text("no slide")
    whole = slide.read_bytes()
    (tmp_path / "cut.tiff").write_bytes(whole[: len(whole) // 2])
    bad = write_slide(tifffile, tmp_path / "bad.tiff", draw_slide(), pyramid=1, compression="zlib")
    spoil(tifffile, bad, range(192))  # the file opens; the damage shows only when it is read
    for name, kind, message in (
        ("gone.svs", MissingError, "no such file"),
        ("text.svs", ImageError, "not a slide that can be read"),
        ("cut.tiff", ImageError, "cut.tiff"),
        ("bad.tiff", ImageError, "is truncated or damaged"),
    ):
        with pytest.raises(kind, match=message) as caught:
            sample(tmp_path / name)
        assert "\n" not in str(caught.value)


def spoil(tifffile: object, path: Path, tiles: Iterable[int]) -> None:
    """Overwrite tiles of the finest level with what no codec understands."""
    with tifffile.TiffFile(path) as file:  # type: ignore[attr-defined]
        page = file.pages[0]
        places = [(page.dataoffsets[tile], page.databytecounts[tile]) for tile in tiles]
    with path.open("r+b") as file:
        for offset, length in places:
            file.seek(offset)
            file.write(b"\xff" * length)


def test_tissue_is_taken_from_where_it_can_be_read(tifffile: object, tmp_path: Path) -> None:
    path = write_slide(tifffile, tmp_path / "half.tiff", draw_slide(), pyramid=1, compression="zlib")
    spoil(tifffile, path, range(96, 192))  # the lower half, with one of the two pieces of tissue
    tiles = sample(path, count=12, size=64)
    half = draw_slide()[:768].reshape(384, 2, 1024, 2, 3).mean((1, 3))
    for tile in tiles:
        cells = (half[y : y + 64, x : x + 64] for y in range(0, 384, 64) for x in range(0, 1024, 64))
        assert any(np.abs(cell - tile).max() <= 1 for cell in cells)


def test_without_openslide_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openslide", None)
    (tmp_path / "a.tiff").touch()
    assert not is_slide(tmp_path / "a.tiff")
    with pytest.raises(MissingError, match=r"pip install 'bottlegan\[slides\]'"):
        sample(tmp_path / "a.svs")


def test_no_tile_with_pen_is_taken_if_there_are_others(tifffile: object, slide: Path, tmp_path: Path) -> None:
    """Otherwise it would pass as one of the two stains."""
    levels, ink = draw_slide().copy(), (20, 120, 60)
    levels[:, 300:340] = ink
    plain = sample(slide, count=300, size=64)
    tiles = sample(write_slide(tifffile, tmp_path / "pen.tiff", levels), count=300, size=64)
    assert len(plain) / 2 < len(tiles) < len(plain)
    for tile in tiles:
        assert np.abs(tile.astype(int) - ink).max(axis=2).min() > 20
