import json
from pathlib import Path

import numpy as np
import pytest
import torch
from bottlegan.normalize.slide import SlideOptions, map_slide
from bottlegan.normalize.slide_folder import map_slide_folder
from bottlegan.normalize.slide_map import MakeMap, MapChoice, SlideMap, fit_map, load_map

from bottlegan.errors import ImageError, InputError, MissingError, TileError
from bottlegan.imaging.files import Levels
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.document import PRIOR
from bottlegan.models.files import save_model
from bottlegan.models.paradigms import build_model
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.progress import Progress
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.slides.grid import Region
from bottlegan.slides.reader import open_slide
from bottlegan.slides.writer import PyramidWriter
from bottlegan.stain.simulate import render
from bottlegan.stain.style import LABORATORIES

tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
openslide = pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("simplejpeg", reason="needs pip install 'bottlegan[slides]'")
WIDTH, HEIGHT, TILE = 500, 330, 128
INVERT = SlideMap(lambda levels: 255 - levels, {"style": "inverted"})


class Inverting(MapChoice):
    def prepare(self, progress: Progress | None = None) -> MakeMap:
        return lambda _: INVERT


INVERTING = Inverting(Path("no model"))


def write(path: Path, levels: Levels, **options: object) -> Path:
    form = {"tile": (TILE, TILE), "photometric": "rgb", "metadata": None, "compression": "jpeg", **options}
    with tifffile.TiffWriter(path) as file:
        file.write(levels, **form)
        file.write(levels[::2, ::2], subfiletype=1, **form)
    return path


@pytest.fixture(scope="module")
def picture() -> Levels:
    """A slide of glass with a piece of tissue on it."""
    levels = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
    tissue = draw_tissue(4, 0, 300).concentration[None]
    levels[20:320, 20:320] = from_batch(render(tissue, LABORATORIES[5]))[0]
    return levels


@pytest.fixture(scope="module")
def slide(picture: Levels, tmp_path_factory: pytest.TempPathFactory) -> Path:
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


@pytest.fixture
def before_jpeg(monkeypatch: pytest.MonkeyPatch) -> list[Levels]:
    """Collect the tiles that are encoded, as they are before."""
    kept: list[Levels] = []
    really = PyramidWriter.encode

    def encode(self: PyramidWriter, levels: Levels) -> bytes:
        kept.append(levels.copy())
        return really(self, levels)

    monkeypatch.setattr(PyramidWriter, "encode", encode)
    return kept


def test_a_tile_alone_is_as_in_the_slide(slide: Path, tmp_path: Path, before_jpeg: list[Levels]) -> None:
    """Exactly, and as the normalizer itself maps it."""
    model = known(tmp_path / "model.safetensors")
    map_slide(slide, tmp_path / "whole.tiff", load_map(MapChoice(model), "b", "normalize"))
    whole = {tile.tobytes() for tile in before_jpeg}
    before_jpeg.clear()
    options = SlideOptions(region="128,0,128,128")
    map_slide(slide, tmp_path / "alone.tiff", load_map(MapChoice(model), "b", "normalize"), options)
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
        result = map_slide(slide, tmp_path / "out.tiff", INVERT, options)
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


def test_a_profile_is_dropped_and_that_is_said(picture: Levels, tmp_path: Path) -> None:
    from PIL import ImageCms  # noqa: PLC0415 - only here

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    map_slide(write(tmp_path / "in.tiff", picture, iccprofile=profile), tmp_path / "out.tiff", INVERT)
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
def test_a_broken_tile_is_reported_and_white_unless_strict(picture: Levels, tmp_path: Path, compression: str) -> None:
    dark = SlideMap(lambda levels: levels // 2, {})  # also what is white
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


def test_a_slide_of_which_nothing_can_be_read_is_not_written(picture: Levels, tmp_path: Path) -> None:
    path = spoil(write(tmp_path / "in.tiff", picture), range(12))
    with pytest.raises(ImageError, match="truncated or damaged"):
        map_slide(path, tmp_path / "out.tiff", INVERT)
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_leaves_nothing(slide: Path, tmp_path: Path) -> None:
    def interrupt(_: Levels) -> Levels:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_slide(slide, tmp_path / "out.tiff", SlideMap(interrupt, {}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SlideOptions(level=2), r"has no level 2; its levels are 0 to 1"),
        (SlideOptions(region="0,0,501,10"), "reaches beyond it"),
        (SlideOptions(level=1, region="0,0,251,10"), "level 1 is 250 x 165 px"),
        (SlideOptions(region="a"), "is not X,Y,WIDTH,HEIGHT"),
        (SlideOptions(quality=0), "from 1 to 100"),
    ],
)
def test_what_a_slide_does_not_have_is_refused(
    slide: Path, tmp_path: Path, options: SlideOptions, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        map_slide(slide, tmp_path / "out.tiff", INVERT, options)
    assert not list(tmp_path.iterdir())


def test_a_style_is_fitted_to_the_slide_or_known(slide: Path, picture: Levels, tmp_path: Path) -> None:
    fitted = fit_map(slide, MapChoice(PRIOR, force=True))
    assert fitted.note["verdict"] in ("good", "uncertain", "refused")
    model = known(tmp_path / "model.safetensors")
    back = load_map(MapChoice(model), "a", "restain")
    both = fitted.then(back)
    assert (both.convert(picture) == back.convert(fitted.convert(picture))).all()
    assert both.note["then"] == back.note
    assert len(str(back.note["model sha256"])) == 64
    with pytest.raises(InputError, match="no style called c; known are: a, b"):
        load_map(MapChoice(model), "c", "restain")


def test_what_is_no_stain_is_refused_unless_forced(tmp_path: Path) -> None:
    random = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    path = write(tmp_path / "noise.tiff", random, compression="zlib")
    with pytest.raises(InputError, match=r"noise\.tiff: refused: .*; nothing was written, --force"):
        fit_map(path, MapChoice(PRIOR))
    assert fit_map(path, MapChoice(PRIOR, force=True)).note["forced"] is True


def test_a_model_whose_output_depends_on_the_tile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="would not fit together"):
        load_map(MapChoice(known(tmp_path / "model.safetensors", statistics="instance")), "a", "normalize")


def test_a_folder_goes_on_after_a_broken_slide_and_skips_what_is_done(
    slide: Path, picture: Levels, tmp_path: Path
) -> None:
    source, target = tmp_path / "in", tmp_path / "new" / "out"
    source.mkdir()
    write(source / "a.tiff", picture)
    (source / "b.svs").write_text("no slide")
    (source / "c.tiff").write_bytes((source / "a.tiff").read_bytes()[:5000])
    write(source / "d.tiff", picture)
    (source / "notes.txt").touch()
    outcomes = map_slide_folder(source, target, INVERTING, SlideOptions())
    assert [each.state for each in outcomes] == ["written", "failed", "failed", "written"]
    assert "b.svs: is not a slide" in outcomes[1].error
    assert "c.tiff" in outcomes[2].error
    assert sorted(each.name for each in target.iterdir()) == ["a.tiff", "d.tiff"]
    (target / "d.tiff").unlink()
    time = (target / "a.tiff").stat().st_mtime_ns
    states = [each.state for each in map_slide_folder(source, target, INVERTING, SlideOptions())]
    assert states == ["was there", "failed", "failed", "written"]
    assert (target / "a.tiff").stat().st_mtime_ns == time


def test_two_slides_of_one_name_or_none_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="holds no slide"):
        map_slide_folder(tmp_path, tmp_path / "out", INVERTING, SlideOptions())
    for name in ("a.svs", "a.ndpi"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"a\.ndpi and a\.svs would both become a\.ome\.tiff"):
        map_slide_folder(tmp_path, tmp_path / "out", INVERTING, SlideOptions(kind="ome"))
    with pytest.raises(InputError, match="is the input itself"):
        map_slide_folder(tmp_path, tmp_path, INVERTING, SlideOptions())
    assert not (tmp_path / "out").exists()
