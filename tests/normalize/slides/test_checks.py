import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from bottlegan import __version__
from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.progress import Item, Silent, Unit
from bottlegan.imaging.files import Pixels
from bottlegan.normalize.choice import ChosenMap, Source
from bottlegan.normalize.slides.one import SlideOptions, map_slide
from bottlegan.slides import reader
from bottlegan.slides.grid import Region

tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
openslide = pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("simplejpeg", reason="needs pip install 'bottlegan[slides]'")
PICTURE = np.random.default_rng(0).integers(0, 256, (300, 500, 3), dtype=np.uint8)


def invert(_: Source) -> ChosenMap:
    return ChosenMap(lambda levels: 255 - levels, {"style": "inverted"})


def no_fit(_: Source) -> ChosenMap:
    pytest.fail("a style was fitted before the slide was checked")


@pytest.fixture
def slide(tmp_path: Path) -> Path:
    """A slide whose pixels are twice as high as wide, and whose second level has smaller tiles."""
    path = tmp_path / "slide.tiff"
    form = {"photometric": "rgb", "metadata": None, "compression": "jpeg"}
    with tifffile.TiffWriter(path) as file:
        file.write(PICTURE, tile=(128, 128), resolution=(4e4, 2e4), resolutionunit="CENTIMETER", **form)
        file.write(PICTURE[::2, ::2], tile=(64, 64), subfiletype=1, **form)
    return path


def test_a_coarser_level_keeps_its_tiles_and_the_shape_of_its_pixels(slide: Path, tmp_path: Path) -> None:
    map_slide(slide, tmp_path / "out.tiff", invert, SlideOptions(level=1))
    with openslide.OpenSlide(tmp_path / "out.tiff") as written:
        sizes = [float(written.properties[f"openslide.mpp-{axis}"]) for axis in "xy"]
        assert sizes == pytest.approx([0.5, 1.0])
        assert written.properties["openslide.level[0].tile-width"] == "64"


def test_the_description_says_how_the_slide_was_made(slide: Path, tmp_path: Path) -> None:
    result = map_slide(slide, tmp_path / "out.tiff", invert, SlideOptions(quality=77))
    with openslide.OpenSlide(tmp_path / "out.tiff") as written:
        note = json.loads(written.properties["tiff.ImageDescription"])
    assert note["jpeg"] == "quality 77, chroma 4:4:4"
    assert note["software"] == f"bottlegan {__version__}"
    assert note["color profile"] == "none"
    assert note["unreadable tiles"] == 0
    assert result.note == note["map"] == {"style": "inverted"}


@pytest.mark.parametrize(
    ("name", "kind", "ome"),
    [("a.tiff", None, False), ("a.ome.tiff", None, True), ("a.tiff", "ome", True), ("a.ome.tiff", "tiff", False)],
)
def test_the_format_is_as_asked_or_as_the_name_says(
    slide: Path, tmp_path: Path, name: str, kind: str | None, ome: bool
) -> None:
    map_slide(slide, tmp_path / name, invert, SlideOptions(kind=kind))  # type: ignore[arg-type]
    with tifffile.TiffFile(tmp_path / name) as file:
        assert bool(file.is_ome) == ome


def test_the_input_is_not_overwritten_by_any_name(slide: Path, tmp_path: Path) -> None:
    before = slide.read_bytes()
    (tmp_path / "link.tiff").symlink_to(slide)
    for target in (slide, tmp_path / "link.tiff", tmp_path / "." / "slide.tiff"):
        with pytest.raises(InputError, match="is an input"):
            map_slide(slide, target, no_fit)
    assert slide.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "options", "kind", "message"),
    [
        ("out.svs", SlideOptions(), InputError, "written as TIFF"),
        ("gone/out.tiff", SlideOptions(), MissingError, "no such folder"),
        ("out.tiff", SlideOptions(level=2), InputError, "has no level 2"),
        ("out.tiff", SlideOptions(level=-1), InputError, "has no level -1; its levels are 0 to 1"),
        ("out.tiff", SlideOptions(region="0,0,501,1"), InputError, "extends beyond it"),
        ("out.tiff", SlideOptions(region="0,299,1,2"), InputError, "extends beyond it"),
        ("out.tiff", SlideOptions(quality=101), InputError, "from 1 to 100"),
    ],
)
def test_what_would_be_refused_is_so_before_a_style_is_fitted(
    slide: Path, tmp_path: Path, name: str, options: SlideOptions, kind: type[InputError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        map_slide(slide, tmp_path / name, no_fit, options)
    assert list(tmp_path.iterdir()) == [slide]


def test_the_last_pixel_can_be_a_region(slide: Path, tmp_path: Path) -> None:
    map_slide(slide, tmp_path / "out.tiff", invert, SlideOptions(region="499,299,1,1"))
    assert tifffile.imread(tmp_path / "out.tiff").shape == (1, 1, 3)


def test_broken_tiles_are_told_row_by_row_whichever_thread_is_first(
    slide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tifffile.TiffFile(slide) as file:
        page = file.pages[0]
        places = [(page.dataoffsets[tile], page.databytecounts[tile]) for tile in (1, 4)]
    with slide.open("r+b") as file:
        for offset, length in places:
            file.seek(offset)
            file.write(b"\x55" * length)

    def read_late(opened: reader.Slide, region: Region) -> tuple[Pixels, list[reader.Broken]]:
        found = reader.read_all_but_broken(opened, region)
        time.sleep(0.3 if (region.x, region.y) == (128, 0) else 0)
        return found

    monkeypatch.setattr("bottlegan.normalize.slides.one.read_all_but_broken", read_late)
    monkeypatch.setattr("bottlegan.slides.stream.GROUP", 1)
    result = map_slide(slide, tmp_path / "out.tiff", invert, threads=2)
    assert [(each.region.x, each.region.y) for each in result.broken] == [(128, 0), (0, 128)]


class Told(Silent):
    """Keeps what it is told to track."""

    def __init__(self) -> None:
        self.labels: list[str] = []

    def track(
        self, items: Iterable[Item], label: str, total: int | None = None, unit: Unit | None = None
    ) -> Iterator[Item]:
        self.labels.append(label)
        yield from items


def test_progress_is_told_by_the_name_of_the_slide(slide: Path, tmp_path: Path) -> None:
    told = Told()
    map_slide(slide, tmp_path / "out.tiff", invert, progress=told)
    assert told.labels == ["slide.tiff"]
