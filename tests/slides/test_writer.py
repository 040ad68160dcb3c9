import errno
import json
import math
import struct
import sys
from pathlib import Path
from typing import BinaryIO, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest

from bottlegan.core.errors import InputError, MissingError
from bottlegan.imaging.files import Pixels
from bottlegan.slides import bigtiff
from bottlegan.slides.grid import Grid, Region, Size
from bottlegan.slides.stream import stream_pyramid
from bottlegan.slides.writer import Form, check_target, choose_format, describe, writing_pyramid

tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
openslide = pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
simplejpeg = pytest.importorskip("simplejpeg", reason="needs pip install 'bottlegan[slides]'")
TILE = Size(64, 64)
TEXT, LONG8, CHILDREN = 2, 16, 330  # types of fields, and the number of the JPEG tables' field
SIZES = {TEXT: 1, LONG8: 8}  # bytes per value


def smooth(width: int, height: int) -> Pixels:
    """Return colors that change slowly, so that JPEG hardly changes them."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    return (255 * np.stack([x, y, (x + y) / 2], axis=2)).astype(np.uint8)


def write(path: Path, levels: Pixels, tile: Size = TILE, **form: object) -> Path:
    size = Size(levels.shape[1], levels.shape[0])
    with writing_pyramid(path, Form(size, tile, **form), {"style": "Köln <&> 🔬"}) as writer:  # type: ignore[arg-type]
        grid = writer.grids[0]
        stream_pyramid(lambda places: [levels[grid[at].within(grid.region)] for at in places], writer, 2)
    return path


@pytest.mark.parametrize(("width", "height"), [(1, 1), (64, 64), (65, 64), (301, 187), (40, 500)])
def test_openslide_and_tifffile_read_every_level(tmp_path: Path, width: int, height: int) -> None:
    levels = smooth(width, height)
    path = write(tmp_path / "smooth 🔬.tiff", levels, mpp=(0.25, 0.5), quality=95)
    with openslide.OpenSlide(path) as slide, tifffile.TiffFile(path) as file:
        count = slide.level_count
        assert count == len(file.pages) == len(file.series[0].levels)
        assert max(slide.level_dimensions[-1]) <= 64
        for level in range(count):
            shown = np.asarray(slide.read_region((0, 0), level, slide.level_dimensions[level]).convert("RGB"))
            page = file.pages[level].asarray()
            assert (shown == page).all()
            step = 2**level
            assert np.abs(page.astype(int) - levels[::step, ::step]).mean() < 6 + 4 * step
            assert page.shape == (-(-height // step), -(-width // step), 3)
        assert np.abs(file.pages[0].asarray().astype(int) - levels).max() <= 16
        assert float(slide.properties["openslide.mpp-x"]) == pytest.approx(0.25)
        assert float(slide.properties["openslide.mpp-y"]) == pytest.approx(0.5)
        assert json.loads(slide.properties["tiff.ImageDescription"]) == {"style": "Köln <&> 🔬"}
        assert slide.properties["tiff.ImageDescription"].isascii()
        assert slide.color_profile is None
    assert list(tmp_path.iterdir()) == [path]


def test_chroma_is_whole_and_quality_is_as_asked(tmp_path: Path) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    files = [write(tmp_path / f"{quality}.tiff", levels, quality=quality) for quality in (30, 90)]
    assert files[0].stat().st_size < 0.6 * files[1].stat().st_size
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2, 0] = 255  # stripes of 1 pixel, which halved chroma would blur
    shown = tifffile.imread(write(tmp_path / "stripes.tiff", stripes)).astype(int)
    assert (shown[:, ::2, 0] - shown[:, 1::2, 0]).min() > 150
    for quality in (1, 100):
        assert Form(Size(1, 1), TILE, quality=quality).quality == quality
    for quality in (0, 101):
        with pytest.raises(InputError, match="from 1 to 100"):
            Form(Size(1, 1), TILE, quality=quality)


def test_white_is_stored_once(tmp_path: Path) -> None:
    levels = np.full((1000, 1000, 3), 255, np.uint8)
    levels[:64, :64] = 100
    path = write(tmp_path / "glass.tiff", levels)
    assert path.stat().st_size < 20_000
    with tifffile.TiffFile(path) as file:
        for level, page in enumerate(file.pages):
            assert (page.asarray()[-(500 >> level) :] == 255).all()
        pages = [list(zip(page.dataoffsets, page.databytecounts, strict=True)) for page in file.pages]
    white = {place for page in pages[:-1] for place in page[1:]}
    assert len(white) == 1  # all tiles but the first, of every level that has more than one
    offset, length = white.pop()
    assert path.read_bytes()[offset : offset + length].endswith(b"\xff\xd9")


def test_what_is_nearly_white_is_kept(tmp_path: Path) -> None:
    levels = np.full((64, 128, 3), 255, np.uint8)
    levels[:, :64] = 254
    assert (tifffile.imread(write(tmp_path / "a.tiff", levels)) == levels).all()


def test_beyond_the_edge_the_last_pixels_are_repeated(tmp_path: Path) -> None:
    y, x = np.mgrid[:40, :90]
    levels = np.stack([2 * x, 4 * y, x + y], axis=2).astype(np.uint8)
    path = write(tmp_path / "a.tiff", levels, quality=100)
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        offset, length = page.dataoffsets[1], page.databytecounts[1]
    tile = simplejpeg.decode_jpeg(path.read_bytes()[offset : offset + length], "RGB").astype(int)
    assert tile.shape == (64, 64, 3)
    assert np.abs(tile[:40, :26] - levels[:, 64:]).max() <= 4
    assert np.abs(tile[:40, 26:] - levels[:, -1:]).max() <= 4
    assert np.abs(tile[40:, :26] - levels[-1:, 64:]).max() <= 4


def test_tiles_need_not_be_square(tmp_path: Path) -> None:
    levels = smooth(301, 187)
    with tifffile.TiffFile(write(tmp_path / "a.tiff", levels, Size(128, 64), quality=95)) as file:
        assert (file.pages[0].tilewidth, file.pages[0].tilelength) == (128, 64)
        assert np.abs(file.pages[0].asarray().astype(int) - levels).max() <= 16


def test_each_level_says_how_large_its_pixels_are(tmp_path: Path) -> None:
    with tifffile.TiffFile(write(tmp_path / "a.tiff", smooth(301, 187), mpp=(0.2437, 0.511))) as file:
        assert len(file.pages) == 4
        for page in file.pages:
            across, down = (page.tags[name].value for name in ("XResolution", "YResolution"))
            # Sizes are rounded up, so a level is not exactly half of the one before.
            assert across[0] / across[1] == pytest.approx(1e4 / 0.2437 * page.imagewidth / 301, rel=1e-6)
            assert down[0] / down[1] == pytest.approx(1e4 / 0.511 * page.imagelength / 187, rel=1e-6)


class Entry(NamedTuple):
    """A field of a page, as it is in the file."""

    number: int
    kind: int
    count: int
    place: int
    """Of its values in the file, if they do not fit into the entry."""


def read_page(data: bytes, place: int) -> tuple[list[Entry], int]:
    """Return the fields of a page, and where the next page is."""
    (count,) = struct.unpack_from("<Q", data, place)
    entries = [Entry(*struct.unpack_from("<HHQQ", data, place + 8 + 20 * k)) for k in range(count)]
    return entries, struct.unpack_from("<Q", data, place + 8 + 20 * count)[0]


@pytest.mark.parametrize("kind", ["tiff", "ome"])
def test_pages_are_as_bigtiff_wants_them(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "a.tiff", smooth(301, 187), mpp=(0.25, 0.5), kind=kind)
    data = path.read_bytes()
    place, pages = struct.unpack_from("<Q", data, 8)[0], []
    while place:
        entries, following = read_page(data, place)
        pages.append((place, entries, following))
        place = following
    assert len(pages) == (1 if kind == "ome" else 4)
    (children,) = [each for each in pages[0][1] if each.number == CHILDREN] or [None]
    if kind == "ome":
        assert children is not None
        assert (children.kind, children.count) == (LONG8, 3)
        places = struct.unpack_from("<3Q", data, children.place)
        pages += [(each, *read_page(data, each)) for each in places]
    assert [following for *_, following in pages[1:]][-1] == 0
    assert kind == "tiff" or all(following == 0 for *_, following in pages)  # children are no chain
    for place, entries, _ in pages:
        assert place % 8 == 0
        assert [each.number for each in entries] == sorted({each.number for each in entries})
        for entry in entries:
            if entry.count * SIZES.get(entry.kind, 0) > 8:  # otherwise the values are in the entry itself
                assert entry.place % 8 == 0
            if entry.kind == TEXT:
                assert data[entry.place : entry.place + entry.count].find(b"\0") == entry.count - 1


@pytest.mark.parametrize("length", range(1, 9))
def test_what_follows_the_tiles_is_aligned_however_long_they_are(tmp_path: Path, length: int) -> None:
    page = bigtiff.Page(Grid(Region(0, 0, 0, 64, 64), TILE), None)
    file = bigtiff.BigTiff(tmp_path / "a.tiff", Path("a.tiff"))
    file.add(page, 0, bytes(length))
    file.finish([page], nested=False)
    file.close()
    data = (tmp_path / "a.tiff").read_bytes()
    place = struct.unpack_from("<Q", data, 8)[0]
    (text,) = (each for each in read_page(data, place)[0] if each.kind == TEXT)
    assert place % 8 == text.place % 8 == 0
    assert data[text.place : text.place + text.count] == b"bottlegan\0"


@pytest.mark.parametrize("kind", ["tiff", "ome"])
def test_all_pages_but_the_first_are_marked_as_reduced(tmp_path: Path, kind: str) -> None:
    with tifffile.TiffFile(write(tmp_path / "a.tiff", smooth(301, 187), kind=kind)) as file:
        first = file.pages[0]
        others = first.pages if kind == "ome" else file.pages[1:]
        assert first.subfiletype == 0
        assert [each.subfiletype for each in others] == [1, 1, 1]
        for page in (first, *(each.aspage() for each in others)):
            assert page.tags["BitsPerSample"].value == (8, 8, 8)
            assert page.tags["YCbCrSubSampling"].value == (1, 1)
            assert page.software == "bottlegan"


def test_without_a_size_of_pixels_none_is_written(tmp_path: Path) -> None:
    with openslide.OpenSlide(write(tmp_path / "a.tiff", smooth(100, 80))) as slide:
        assert "openslide.mpp-x" not in slide.properties


def test_ome_has_its_levels_below_the_first_and_says_how_large_pixels_are(tmp_path: Path) -> None:
    levels = smooth(301, 187)
    path = write(tmp_path / "a.ome.tiff", levels, mpp=(0.25, 0.5), kind="ome")
    with tifffile.TiffFile(path) as file:
        assert file.is_ome
        assert len(file.pages) == 1
        assert [each.shape for each in file.series[0].levels] == [(187, 301, 3), (94, 151, 3), (47, 76, 3), (24, 38, 3)]
        assert np.abs(file.series[0].levels[1].asarray().astype(int) - levels[::2, ::2]).mean() < 4
        root = ElementTree.fromstring(file.ome_metadata)  # noqa: S314 - we wrote it
    space = "{http://www.openmicroscopy.org/Schemas/OME/2016-06}"
    pixels = root.find(f".//{space}Pixels")
    assert pixels is not None
    assert (pixels.get("SizeX"), pixels.get("SizeY")) == ("301", "187")
    assert (pixels.get("PhysicalSizeX"), pixels.get("PhysicalSizeY")) == ("0.25", "0.5")
    assert pixels.get("SizeC") == "3"
    assert json.loads(str(root.findtext(f".//{space}Description"))) == {"style": "Köln <&> 🔬"}
    assert "PhysicalSize" not in describe(Form(Size(301, 187), TILE, kind="ome"), {})


def test_notes_are_sorted_and_have_no_numbers_that_json_lacks() -> None:
    assert describe(Form(Size(1, 1), TILE), {"b": 1, "a": 2}) == '{"a": 2, "b": 1}'
    with pytest.raises(ValueError, match="JSON compliant"):
        describe(Form(Size(1, 1), TILE), {"a": math.nan})


def test_what_a_writer_notes_is_its_own(tmp_path: Path) -> None:
    note: dict[str, int] = {}
    with writing_pyramid(tmp_path / "a.tiff", Form(Size(1, 1), TILE), note) as writer:
        writer.note["more"] = 1
        writer.add(0, 0, writer.encode(np.full((1, 1, 3), 255, np.uint8)))
    assert not note


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_what_is_interrupted_leaves_what_was_there(tmp_path: Path, kind: type[BaseException]) -> None:
    path = tmp_path / "a.tiff"
    path.write_text("older")
    with pytest.raises(kind), writing_pyramid(path, Form(Size(100, 100), Size(64, 64)), {}):
        raise kind
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


class FullDisk:
    """A file on a disk that is full after some bytes."""

    def __init__(self, file: BinaryIO, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: bytes) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self.file, name)


def test_a_full_disk_is_named_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = bigtiff._open
    monkeypatch.setattr(bigtiff, "_open", lambda path, name: FullDisk(really(path, name), 3000))
    with pytest.raises(InputError, match=r"a\.tiff: cannot be written \(No space left on device\)"):
        write(tmp_path / "a.tiff", smooth(500, 500))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("late", ["flush", "close"])
def test_a_disk_that_is_full_only_at_the_end_is_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    really = bigtiff._open

    def opened(path: Path, name: Path) -> BinaryIO:
        file = really(path, name)

        def fail() -> None:
            file.close()
            raise OSError(errno.ENOSPC, "No space left on device")

        full = FullDisk(file, 10**9)
        setattr(full, late, fail)
        return full  # type: ignore[return-value]

    monkeypatch.setattr(bigtiff, "_open", opened)
    with pytest.raises(InputError, match=r"a\.tiff: cannot be written \(No space left on device\)"):
        write(tmp_path / "a.tiff", smooth(100, 100))
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_opened_is_called_by_its_later_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^a\.tiff: cannot be written \(No such file or directory\)"):
        bigtiff.BigTiff(tmp_path / "gone" / ".temporary", Path("a.tiff"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.tiff", "tiff"), ("a.TIF", "tiff"), ("a.ome.tif", "ome"), ("A.OME.TIFF", "ome"), ("ome.tiff", "tiff")],
)
def test_a_name_says_which_format_is_meant(tmp_path: Path, name: str, kind: str) -> None:
    check_target(tmp_path / name, "tiff")
    assert choose_format(tmp_path / name) == kind


def test_a_folder_that_is_missing_is_named_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such folder"):
        check_target(tmp_path / "gone" / "a.tiff", "tiff")


def test_without_an_encoder_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    with pytest.raises(MissingError, match=r"pip install 'bottlegan\[slides\]'"):
        write(tmp_path / "a.tiff", smooth(10, 10))
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    for path, kind, message in (
        (tmp_path / "a.svs", InputError, "written as TIFF"),
        (tmp_path / "gone" / "a.tiff", MissingError, "no such folder"),
        (tmp_path / "folder.tiff", InputError, "is a folder"),
    ):
        (tmp_path / "folder.tiff").mkdir(exist_ok=True)
        with pytest.raises(kind, match=message):
            write(path, smooth(10, 10))
