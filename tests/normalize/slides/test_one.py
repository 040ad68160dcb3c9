import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bottlegan.core.errors import ImageError, InputError, TileError
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.document import PRIOR
from bottlegan.models.files import save_model
from bottlegan.models.paradigms import BottleGAN, build_model
from bottlegan.normalize.choice import ChosenMap, MapChoice, RefusedError, Source
from bottlegan.normalize.normalizer import Direction, Normalizer
from bottlegan.normalize.slides.one import SlideOptions, map_slide
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.slides.grid import Region
from bottlegan.slides.reader import open_slide
from bottlegan.slides.writer import PyramidWriter
from bottlegan.stain.style import LABORATORIES

tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
openslide = pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("simplejpeg", reason="needs pip install 'bottlegan[slides]'")
WIDTH, HEIGHT, TILE = 500, 330, 128


def invert(_: Source) -> ChosenMap:
    return ChosenMap(lambda levels: 255 - levels, {"style": "inverted"})


def write(path: Path, levels: Pixels, **options: object) -> Path:
    form = {"tile": (TILE, TILE), "photometric": "rgb", "metadata": None, "compression": "jpeg", **options}
    with tifffile.TiffWriter(path) as file:
        file.write(levels, **form)
        file.write(levels[::2, ::2], subfiletype=1, **form)
    return path


@pytest.fixture(scope="module")
def picture() -> Pixels:
    """A slide of glass with a piece of tissue on it."""
    levels = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
    tissue = draw_tissue(4, 0, 300).concentration[None]
    levels[20:320, 20:320] = from_batch(render(tissue, LABORATORIES[5]))[0]
    return levels


@pytest.fixture(scope="module")
def slide(picture: Pixels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("slide") / "tissue 🔬.svs.tiff"
    return write(path, picture, resolution=(2e4, 2e4), resolutionunit="CENTIMETER")


def known(path: Path, statistics: str = "frozen", paradigm: str = "many-one-many") -> Path:
    """Write a model that knows two styles."""
    generator = GeneratorConfig(width=4, depth=1, mapping=3, statistics=statistics)  # type: ignore[arg-type]
    random = torch.Generator().manual_seed(0)
    config = ModelConfig(code_size=3, generator=generator, paradigm=paradigm)  # type: ignore[arg-type]
    built = build_model(config, ("a", "b"), random)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=random)
    save_model(built, path)
    return path


@pytest.fixture(scope="module")
def prior(plain_prior: BottleGAN, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prior") / "plain.safetensors"
    save_model(plain_prior, path)
    return path


@pytest.fixture
def before_jpeg(monkeypatch: pytest.MonkeyPatch) -> list[Pixels]:
    """Collect the tiles that are encoded, as they are before."""
    kept: list[Pixels] = []
    really = PyramidWriter.encode

    def encode(self: PyramidWriter, levels: Pixels) -> bytes:
        kept.append(levels.copy())
        return really(self, levels)

    monkeypatch.setattr(PyramidWriter, "encode", encode)
    return kept


def test_a_tile_alone_is_as_in_the_slide(slide: Path, tmp_path: Path, before_jpeg: list[Pixels]) -> None:
    """Exactly, and as the normalizer itself maps it."""
    model = known(tmp_path / "model.safetensors")
    map_slide(slide, tmp_path / "whole.tiff", MapChoice(model, "b").prepare())
    whole = {tile.tobytes() for tile in before_jpeg}
    before_jpeg.clear()
    options = SlideOptions(region="128,0,128,128")
    map_slide(slide, tmp_path / "alone.tiff", MapChoice(model, "b").prepare(), options)
    (alone,) = before_jpeg
    assert alone.tobytes() in whole
    with open_slide(slide) as opened:
        tile = opened.read(Region(0, 128, 0, 128, 128))
    assert (alone == Normalizer.from_model(model, "b")(tile)).all()
    assert (alone != tile).any()


def test_levels_regions_and_sizes_of_pixels(slide: Path, tmp_path: Path) -> None:
    for options, box, mpp in (
        (SlideOptions(), (0, 0, WIDTH, HEIGHT, 0), 0.5),
        (SlideOptions(region="33,20,301,111", quality=95), (33, 20, 301, 111, 0), 0.5),
        (SlideOptions(level=1), (0, 0, 250, 165, 1), 1.0),
        (SlideOptions(level=1, region="10,20,140,30"), (10, 20, 140, 30, 1), 1.0),
    ):
        result = map_slide(slide, tmp_path / "out.tiff", invert, options)
        x, y, width, height, level = box
        with open_slide(slide) as opened:
            expected = 255 - opened.read(Region(level, x, y, width, height))
        with openslide.OpenSlide(tmp_path / "out.tiff") as written:
            assert written.dimensions == (width, height)
            assert float(written.properties["openslide.mpp-x"]) == pytest.approx(mpp)
            shown = np.asarray(written.read_region((0, 0), 0, (width, height)).convert("RGB"))
            note = json.loads(written.properties["tiff.ImageDescription"])
        assert np.abs(shown.astype(int) - expected).mean() < 6
        assert (note["level"], note["region"]) == (level, [x, y, width, height])
        assert note["map"] == {"style": "inverted"}
        assert note["source"] == "generic-tiff, JPEG"
        assert slide.stem not in json.dumps(note)
        assert result.megapixels == width * height / 1e6
        assert not result.broken


def test_a_profile_is_dropped_and_that_is_said(picture: Pixels, tmp_path: Path) -> None:
    from PIL import ImageCms  # noqa: PLC0415 - only here

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    map_slide(write(tmp_path / "in.tiff", picture, iccprofile=profile), tmp_path / "out.tiff", invert)
    with openslide.OpenSlide(tmp_path / "out.tiff") as written:
        assert written.color_profile is None
        assert json.loads(written.properties["tiff.ImageDescription"])["color profile"].startswith("dropped")


def spoil(path: Path, tiles: range) -> Path:
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        places = [(page.dataoffsets[tile], page.databytecounts[tile]) for tile in tiles]
    with path.open("r+b") as file:
        for offset, length in places:
            file.seek(offset)
            file.write(b"\x55" * length)
    return path


@pytest.mark.parametrize("compression", ["jpeg", "lzw"])
def test_a_broken_tile_is_reported_and_white_unless_strict(picture: Pixels, tmp_path: Path, compression: str) -> None:

    def dark(_: Source) -> ChosenMap:
        return ChosenMap(lambda levels: levels // 2, {})  # also what is white

    path = spoil(write(tmp_path / "in.tiff", picture, compression=compression), range(1, 2))
    result = map_slide(path, tmp_path / "out.tiff", dark)
    assert len(result.broken) == 1
    assert "128, 0 of level 0" in str(result.broken[0].error)
    shown = tifffile.imread(tmp_path / "out.tiff")
    assert (shown[:TILE, TILE : 2 * TILE] == 255).all()
    assert np.abs(shown[:TILE, :TILE].astype(int) - picture[:TILE, :TILE] // 2).mean() < 6
    with openslide.OpenSlide(tmp_path / "out.tiff") as written:
        assert json.loads(written.properties["tiff.ImageDescription"])["unreadable tiles"] == 1
    with pytest.raises(TileError, match="128, 0 of level 0"):
        map_slide(path, tmp_path / "strict.tiff", dark, SlideOptions(strict=True))
    assert not (tmp_path / "strict.tiff").exists()


def test_a_slide_of_which_nothing_can_be_read_is_not_written(picture: Pixels, tmp_path: Path) -> None:
    path = spoil(write(tmp_path / "in.tiff", picture), range(12))
    with pytest.raises(ImageError, match="truncated or damaged"):
        map_slide(path, tmp_path / "out.tiff", invert)
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_leaves_nothing(slide: Path, tmp_path: Path) -> None:
    def interrupt(_: Pixels) -> Pixels:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_slide(slide, tmp_path / "out.tiff", lambda _: ChosenMap(interrupt, {}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SlideOptions(level=2), r"has no level 2; its levels are 0 to 1"),
        (SlideOptions(region="0,0,501,10"), "extends beyond it"),
        (SlideOptions(level=1, region="0,0,251,10"), "level 1 is 250 x 165 px"),
        (SlideOptions(region="a"), "is not X,Y,WIDTH,HEIGHT"),
        (SlideOptions(quality=0), "from 1 to 100"),
    ],
)
def test_what_a_slide_does_not_have_is_refused(
    slide: Path, tmp_path: Path, options: SlideOptions, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        map_slide(slide, tmp_path / "out.tiff", invert, options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("direction", ["normalize", "restain"])
def test_the_description_tells_of_a_known_style(slide: Path, tmp_path: Path, direction: Direction) -> None:
    model = known(tmp_path / "model.safetensors")
    choice = MapChoice(model, "a", to=None if direction == "restain" else "b", direction=direction)
    note = map_slide(slide, tmp_path / "out.tiff", choice.prepare()).note
    assert (note["style"], note["direction"], note["model"]) == ("a", direction, "model.safetensors")
    assert note.get("then") == choice.to
    assert len(str(note["model sha256"])) == 64
    assert "verdict" not in note


def test_a_slide_is_opened_once_and_fitted_to_as_it_is(slide: Path, prior: Path, tmp_path: Path) -> None:
    given: list[Source] = []
    make = MapChoice(prior).prepare()

    def noting(source: Source) -> ChosenMap:
        given.append(source)
        return make(source)

    result = map_slide(slide, tmp_path / "out.tiff", noting)
    assert [type(each).__name__ for each in given] == ["OpenedSlide"]
    assert (result.note["style"], result.note["verdict"]) == ("fitted to it", "good")
    with openslide.OpenSlide(tmp_path / "out.tiff") as written:
        assert json.loads(written.properties["tiff.ImageDescription"])["map"] == result.note


def test_what_is_no_stain_is_refused_unless_forced(tmp_path: Path) -> None:
    source, target = tmp_path / "in" / "dark.tiff", tmp_path / "out.tiff"
    source.parent.mkdir()
    random = np.random.default_rng(0).integers(0, 9, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    write(source, random, compression="zlib")
    with pytest.raises(RefusedError, match=r"dark\.tiff: refused: .*; nothing was written; add --force"):
        map_slide(source, target, MapChoice(PRIOR).prepare())
    assert [each.name for each in tmp_path.iterdir()] == ["in"]
    assert map_slide(source, target, MapChoice(PRIOR, force=True).prepare()).note["forced"] is True
    assert target.exists()


def test_a_slide_without_tissue_has_no_map_even_if_forced(prior: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "blank.tiff", np.full((HEIGHT, WIDTH, 3), 245, np.uint8))
    for force in (False, True):
        with pytest.raises(InputError, match="no tissue was found on this slide"):
            map_slide(source, tmp_path / "out.tiff", MapChoice(prior, force=force).prepare())
    assert list(tmp_path.iterdir()) == [source]
