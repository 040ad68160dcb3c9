import io
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bottlegan.core.errors import ImageError, TileError
from bottlegan.imaging.files import Pixels
from bottlegan.slides.grid import Region, Size
from bottlegan.slides.reader import open_slide, read_all_but_broken
from bottlegan.slides.tiled import JpegTiles, find_jpeg_tiles, make_head, read_tiff, strip_names

tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
openslide = pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("simplejpeg", reason="needs pip install 'bottlegan[slides]'")
WIDTH, HEIGHT, TILE = 301, 187, 64
NOISE = np.kron(np.random.default_rng(0).integers(0, 256, (24, 38, 3)), np.ones((8, 8, 1))).astype(np.uint8)
PICTURE = NOISE[:HEIGHT, :WIDTH]


def write(path: Path, compression: str = "jpeg", levels: Pixels = PICTURE, pyramid: int = 2, **options: object) -> Path:
    with tifffile.TiffWriter(path) as file:
        for k in range(pyramid):
            form = {"tile": (TILE, TILE), "photometric": "rgb", "metadata": None, "compression": compression, **options}
            file.write(levels[:: 2**k, :: 2**k], subfiletype=min(k, 1), **form)
    return path


def encode(tile: Pixels, quality: int, rgb: bool) -> bytes:
    """Return a tile as JPEG: in YCbCr with halved chroma and JFIF's marker, or in RGB with Adobe's."""
    buffer = io.BytesIO()
    Image.fromarray(tile).save(buffer, "JPEG", quality=quality, subsampling=0 if rgb else 2, keep_rgb=rgb)
    return buffer.getvalue()


def split(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the markers that name the channels, the tables, and the rest of a JPEG."""
    parts: dict[int, bytes] = {}
    place = 2
    while data[place + 1] != 0xDA:
        after = place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        parts[data[place + 1]] = parts.get(data[place + 1], b"") + data[place:after]
        place = after
    named = parts.pop(0xE0, b"") + parts.pop(0xEE, b"")
    tables = parts.pop(0xDB, b"") + parts.pop(0xC4, b"")
    return named, tables, b"".join(parts.values()) + data[place:]


def write_by_hand(path: Path, photometric: str, rgb: bool, shared: bool, named: bool) -> Path:
    """Write one level whose tiles may share their tables and may name their channels."""
    padded = np.pad(PICTURE, ((0, -HEIGHT % TILE), (0, -WIDTH % TILE), (0, 0)), mode="edge")
    cells = [(y, x) for y in range(0, HEIGHT, TILE) for x in range(0, WIDTH, TILE)]
    parts = [split(encode(np.ascontiguousarray(padded[y : y + TILE, x : x + TILE]), 80, rgb)) for y, x in cells]
    tiles = [b"\xff\xd8" + (n if named else b"") + (b"" if shared else t) + rest for n, t, rest in parts]
    tables = b"\xff\xd8" + parts[0][1] + b"\xff\xd9"
    form: dict[str, Any] = {"tile": (TILE, TILE), "compression": "jpeg", "photometric": photometric, "metadata": None}
    if photometric == "rgb":
        form["compressionargs"] = {"outcolorspace": "rgb"}  # otherwise tifffile writes YCbCr
    else:
        form["subsampling"] = (1, 1) if rgb else (2, 2)
    if shared:
        form["extratags"] = [(347, 7, len(tables), tables, True)]
    with tifffile.TiffWriter(path) as file:
        file.write(iter(tiles), shape=(HEIGHT, WIDTH, 3), dtype=np.uint8, **form)
    return path


def as_openslide_reads(path: Path, region: Region) -> Pixels:
    with openslide.OpenSlide(path) as slide:
        step = 2**region.level
        box = (region.width, region.height)
        return np.asarray(slide.read_region((region.x * step, region.y * step), region.level, box).convert("RGB"))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("photometric", "rgb", "named"),
    [
        ("ycbcr", False, True),
        ("ycbcr", False, False),
        ("rgb", True, False),
        ("rgb", True, True),
        ("rgb", False, True),  # if tiles contradict the TIFF, the TIFF wins, as in OpenSlide
        ("ycbcr", True, True),
    ],
)
def test_colors_are_what_the_tiff_says_they_are(
    tmp_path: Path, photometric: str, rgb: bool, named: bool, shared: bool
) -> None:
    path = write_by_hand(tmp_path / "hand 🔬.tiff", photometric, rgb, shared, named)
    whole = Region(0, 0, 0, WIDTH, HEIGHT)
    with open_slide(path) as slide:
        assert slide.direct == {0}
        shown = slide.read(whole)
    assert (shown == as_openslide_reads(path, whole)).all()
    assert (np.abs(shown.astype(int) - PICTURE).mean() < 20) == (rgb == (photometric == "rgb"))


@pytest.mark.parametrize("region", [Region(0, 0, 0, 64, 64), Region(0, 10, 60, 200, 100), Region(1, 128, 64, 22, 29)])
@pytest.mark.parametrize("compression", ["jpeg", "lzw", "zlib"])
def test_any_part_is_as_openslide_reads_it(tmp_path: Path, compression: str, region: Region) -> None:
    # Even sizes, because OpenSlide blurs a level that is not reduced by a whole number.
    path = write(tmp_path / "a.tiff", compression, PICTURE[:186, :300])
    with open_slide(path) as slide:
        assert slide.levels == (Size(300, 186), Size(150, 93))
        assert slide.direct == ({0, 1} if compression == "jpeg" else set())
        assert slide.tile(0) == Size(64, 64)
        shown = slide.read(region)
        assert shown.flags.c_contiguous
        assert (shown == as_openslide_reads(path, region)).all()
        if compression == "lzw" and region.level == 0:
            assert (shown == PICTURE[region.within(Region(0, 0, 0, WIDTH, HEIGHT))]).all()


def test_tiles_need_not_be_square(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tiff", tile=(64, 128))
    with open_slide(path) as slide:
        assert slide.tile(0) == Size(128, 64)
        assert slide.direct == {0, 1}
        region = Region(0, 100, 50, 150, 100)
        assert (slide.read(region) == as_openslide_reads(path, region)).all()


def test_a_tile_that_was_left_out_is_white(tmp_path: Path) -> None:
    whole = Region(0, 0, 0, WIDTH, HEIGHT)
    path = write(tmp_path / "a.tiff")
    with open_slide(path) as slide:
        expected = slide.read(whole).copy()
    with tifffile.TiffFile(path, mode="r+b") as file:
        tag = file.pages[0].tags["TileByteCounts"]
        tag.overwrite([0 if k == 1 else length for k, length in enumerate(tag.value)])
    expected[:64, 64:128] = 255
    with open_slide(path) as slide:
        assert (slide.read(Region(0, 64, 0, 64, 64)) == 255).all()
        assert (slide.read(whole) == expected).all()


def test_what_lies_beyond_a_slide_is_white(tmp_path: Path) -> None:
    for compression in ("jpeg", "lzw"):
        with open_slide(write(tmp_path / f"{compression}.tiff", compression)) as slide:
            assert (slide.read(Region(0, WIDTH, 0, 5, 5)) == 255).all()
            assert (slide.read(Region(0, WIDTH - 2, 0, 5, 5))[:, 2:] == 255).all()


def spoil(path: Path, tiles: Iterable[int], data: bytes | None = None) -> Path:
    """Overwrite tiles of the finest level with garbage, or cut off their end."""
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        places = [(page.dataoffsets[tile], page.databytecounts[tile]) for tile in tiles]
    with path.open("r+b") as file:
        for offset, length in places:
            kept = length // 2 if data is None else 0
            file.seek(offset + kept)
            file.write((data or b"\0") * (length - kept))
    return path


@pytest.mark.parametrize("compression", ["jpeg", "lzw"])
@pytest.mark.parametrize("data", [b"\xff", b"\x55", None])
def test_a_broken_tile_is_white_and_the_others_are_not(tmp_path: Path, compression: str, data: bytes | None) -> None:
    whole = Region(0, 0, 0, WIDTH, HEIGHT)
    with open_slide(write(tmp_path / "good.tiff", compression)) as slide:
        good = slide.read(whole).copy()
    with open_slide(spoil(write(tmp_path / "bad.tiff", compression), [1, 7], data)) as slide:
        with pytest.raises(TileError, match=r"bad\.tiff: is truncated or damaged.*of level 0"):
            slide.read(Region(0, 64, 0, 64, 64))
        assert (slide.read(Region(0, 0, 0, 64, 64)) == good[:64, :64]).all()  # also after a failure
        shown, broken = read_all_but_broken(slide, whole)
    good[:64, 64:128] = good[64:128, 128:192] = 255
    assert (shown == good).all()
    assert [(each.region.x, each.region.y) for each in broken] == [(64, 0), (128, 64)]
    assert all("\n" not in str(each.error) for each in broken)


@pytest.mark.parametrize(("height", "width"), [(16, 16), (64, 16), (16, 64), (128, 64), (128, 128)])
def test_a_tile_of_another_size_is_broken(tmp_path: Path, height: int, width: int) -> None:
    path = write(tmp_path / "a.tiff", pyramid=1)
    other = encode(np.full((height, width, 3), 99, np.uint8), 50, rgb=False)
    with tifffile.TiffFile(path) as file:
        offset, length = file.pages[0].dataoffsets[0], file.pages[0].databytecounts[0]
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(other.ljust(length, b"\0"))
    assert len(other) < length
    with open_slide(path) as slide, pytest.raises(TileError, match="has the wrong size"):
        slide.read(Region(0, 0, 0, 64, 64))


@pytest.mark.parametrize(
    ("levels", "form", "message"),
    [
        (PICTURE.astype(np.uint16), {"compression": "zlib"}, "has 16 bits a channel; export the slide with 8"),
        (PICTURE[..., 0], {"compression": "zlib", "photometric": "minisblack"}, "is grayscale"),
        (PICTURE[..., 0], {"compression": "jpeg", "photometric": "minisblack"}, "is grayscale"),
    ],
)
def test_other_than_rgb_of_8_bits_is_refused(
    tmp_path: Path, levels: Pixels, form: dict[str, str], message: str
) -> None:
    path = write(tmp_path / "a.tiff", levels=levels, **form)  # type: ignore[arg-type]
    with pytest.raises(ImageError, match=message), open_slide(path):
        pass


@pytest.mark.parametrize("compression", ["jpeg", "lzw"])
def test_a_truncated_slide_is_refused_when_it_is_opened(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path / "a.tiff", compression, pyramid=1)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ImageError, match=r"a\.tiff: is truncated or damaged"), open_slide(path):
        pass
    with pytest.raises(ImageError, match=r"is truncated or damaged \(\d of 15 tiles"):  # whatever OpenSlide returns
        read_tiff(path, [])


def test_strips_and_plain_images_are_slides_of_one_level(tmp_path: Path) -> None:
    strips = tmp_path / "strips.tiff"
    tifffile.imwrite(strips, PICTURE, photometric="rgb", compression="lzw")
    Image.fromarray(PICTURE).save(tmp_path / "a.png")
    for path in (strips, tmp_path / "a.png"):
        with open_slide(path) as slide:
            assert slide.levels == ((WIDTH, HEIGHT),)
            assert (slide.read(Region(0, 20, 10, 70, 50)) == PICTURE[10:60, 20:90]).all()
            assert (slide.read(Region(0, WIDTH - 1, 0, 2, 2))[:, 1] == 255).all()


def test_sizes_of_pixels_and_profiles_are_found(tmp_path: Path) -> None:
    from PIL import ImageCms  # noqa: PLC0415 - only here

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    form = {"resolution": (2e4, 4e4), "resolutionunit": "CENTIMETER", "iccprofile": profile}
    with open_slide(write(tmp_path / "a.tiff", **form)) as slide:  # type: ignore[arg-type]
        assert slide.mpp == pytest.approx((0.5, 0.25))
        assert slide.icc == profile
        assert slide.kind == "generic-tiff, JPEG"
    with open_slide(write(tmp_path / "b.tiff")) as slide:
        assert slide.mpp is None
        assert slide.icc is None


def marker(number: int, data: bytes) -> bytes:
    return bytes([0xFF, number]) + (len(data) + 2).to_bytes(2, "big") + data


JFIF, ADOBE = marker(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"), marker(0xEE, b"Adobe\0\x64\0\0\0\0\1")
EXIF, TABLE, RESTART = marker(0xE1, b"Exif\0\0"), marker(0xDB, bytes(65)), marker(0xDD, b"\0\4")
SCAN = marker(0xDA, b"\3\1\0\2\x11\3\x11\0\x3f\0") + JFIF + b"pixels" + ADOBE + b"\xff\xd9"  # by chance


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (JFIF + EXIF + ADOBE + TABLE + RESTART + SCAN, EXIF + TABLE + RESTART + SCAN),
        (TABLE + JFIF + SCAN, TABLE + SCAN),
        (SCAN, SCAN),
        (b"\0\xe0\0\4no marker", b"\0\xe0\0\4no marker"),
        (JFIF + b"\xff", b"\xff"),  # the kept part ends where the file does
        (JFIF + b"\xff\xe0\0", b"\xff\xe0\0"),
        (b"", b""),
    ],
)
def test_only_markers_that_name_channels_are_taken_out(data: bytes, kept: bytes) -> None:
    assert strip_names(b"\xff\xd8" + data) == kept


@pytest.mark.parametrize(("rgb", "name"), [(True, b"\0"), (False, b"\1")])
def test_the_head_of_a_tile_names_its_channels_once_and_holds_the_tables(rgb: bool, name: bytes) -> None:
    tables = b"\xff\xd8" + JFIF + TABLE + ADOBE + b"\xff\xd9"
    assert make_head(tables, rgb) == b"\xff\xd8" + ADOBE[:-1] + name + TABLE
    assert make_head(b"", rgb) == b"\xff\xd8" + ADOBE[:-1] + name


def test_a_palette_is_no_rgb(tmp_path: Path) -> None:
    colors = np.arange(3 * 256, dtype=np.uint16).reshape(3, 256)
    tifffile.imwrite(tmp_path / "a.tiff", PICTURE[..., 0], photometric="palette", colormap=colors)
    with pytest.raises(ImageError, match="give the slide in RGB"):
        read_tiff(tmp_path / "a.tiff", [])


def test_a_slide_whose_last_level_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tiff")
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(ImageError, match=r"is truncated or damaged \(\d of 6 tiles"):
        read_tiff(path, [])


def test_tiles_beyond_4_gb_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.tiff")
    with tifffile.TiffFile(path) as file:
        monkeypatch.setattr(file.pages[0], "dataoffsets", (2**32,) * 15)
        monkeypatch.setattr("bottlegan.slides.tiled._open", lambda _: file)
        with pytest.raises(ImageError, match="15 of 15 tiles lie beyond its end"):
            read_tiff(path, [])


def test_what_is_no_tiff_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tiff").write_text("no slide")
    with pytest.raises(ImageError, match=r"a\.tiff: is truncated or damaged"):
        read_tiff(tmp_path / "a.tiff", [])


def make_page(**other: object) -> SimpleNamespace:
    """Return a page of 3 x 5 tiles of JPEG, as tifffile describes it."""
    size = {"imagewidth": 300, "imagelength": 186, "tilewidth": 64, "tilelength": 64}
    form = {"is_tiled": True, "compression": 7, "bitspersample": 8, "samplesperpixel": 3, "planarconfig": 1}
    data = {"photometric": 6, "jpegtables": None, "dataoffsets": range(15), "databytecounts": range(15)}
    return SimpleNamespace(**{**size, **form, **data, **other})


def find_levels(*pages: SimpleNamespace) -> dict[int, JpegTiles]:
    return find_jpeg_tiles(SimpleNamespace(pages=pages), [Size(300, 186)])


@pytest.mark.parametrize(
    "other",
    [
        {"is_tiled": False},
        {"compression": 8},
        {"bitspersample": 12},
        {"samplesperpixel": 4},
        {"planarconfig": 2},
        {"photometric": 1},
        {"imagewidth": 299},
        {"dataoffsets": range(45)},
    ],
)
def test_only_tiles_of_jpeg_in_color_are_decoded_directly(other: dict[str, object]) -> None:
    assert find_levels(make_page(**other)) == {}
    assert set(find_levels(make_page(**other), make_page())) == {0}


def test_of_two_pages_of_one_size_the_first_is_the_level() -> None:
    found = find_levels(make_page(), make_page(dataoffsets=range(100, 115)))
    assert list(found[0].offsets) == list(range(15))


def test_without_a_decoder_nothing_is_decoded_directly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.tiff")
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    with open_slide(path) as slide:
        assert not slide.direct
        assert slide.read(Region(0, 0, 0, 64, 64)).shape == (64, 64, 3)


def test_a_tiff_without_an_image_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "empty.tiff"
    path.write_bytes(struct.pack("<2sHI", b"II", 42, 0))
    with pytest.raises(ImageError, match=r"empty\.tiff: is truncated or damaged"):
        read_tiff(path, [])
