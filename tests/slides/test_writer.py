import errno
import json
from pathlib import Path
from typing import BinaryIO
from xml.etree import ElementTree

import numpy as np
import pytest

from bottlegan.errors import InputError, MissingError
from bottlegan.slides import bigtiff
from bottlegan.slides.grid import Size
from bottlegan.slides.image import Levels
from bottlegan.slides.stream import stream_pyramid
from bottlegan.slides.writer import Form, writing_pyramid

tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
openslide = pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("simplejpeg", reason="needs pip install 'bottlegan[slides]'")


def smooth(width: int, height: int) -> Levels:
    """Return colors that change slowly, so that JPEG hardly changes them."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    return (255 * np.stack([x, y, (x + y) / 2], axis=2)).astype(np.uint8)


def write(path: Path, levels: Levels, **form: object) -> Path:
    size, tile = Size(levels.shape[1], levels.shape[0]), Size(64, 64)
    with writing_pyramid(path, Form(size, tile, **form), {"style": "Köln <&> 🔬"}) as writer:  # type: ignore[arg-type]
        grid = writer.grids[0]
        stream_pyramid(lambda index: levels[grid[index].within(grid.region)], writer, 2)
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
    stripes[:, ::2, 0] = 255  # of 1 pixel, which halved chroma would blur
    shown = tifffile.imread(write(tmp_path / "stripes.tiff", stripes)).astype(int)
    assert (shown[:, ::2, 0] - shown[:, 1::2, 0]).min() > 150
    for quality in (0, 101):
        with pytest.raises(InputError, match="from 1 to 100"):
            Form(Size(1, 1), Size(64, 64), quality=quality)


def test_white_is_stored_once(tmp_path: Path) -> None:
    levels = np.full((1000, 1000, 3), 255, np.uint8)
    levels[:64, :64] = 100
    path = write(tmp_path / "glass.tiff", levels)
    assert path.stat().st_size < 20_000
    with tifffile.TiffFile(path) as file:
        for level, page in enumerate(file.pages):
            assert (page.asarray()[-(500 >> level) :] == 255).all()


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
    assert json.loads(str(root.findtext(f".//{space}Description"))) == {"style": "Köln <&> 🔬"}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_what_is_interrupted_leaves_what_was_there(tmp_path: Path, kind: type[BaseException]) -> None:
    path = tmp_path / "a.tiff"
    path.write_text("older")
    with pytest.raises(kind), writing_pyramid(path, Form(Size(100, 100), Size(64, 64)), {}):
        raise kind
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


class FullDisk:
    """A file on a disk that has no room left after some bytes."""

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


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    for path, kind, message in (
        (tmp_path / "a.svs", InputError, "written as TIFF"),
        (tmp_path / "gone" / "a.tiff", MissingError, "no such folder"),
        (tmp_path / "folder.tiff", InputError, "is a folder"),
    ):
        (tmp_path / "folder.tiff").mkdir(exist_ok=True)
        with pytest.raises(kind, match=message):
            write(path, smooth(10, 10))
