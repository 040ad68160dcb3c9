from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import ndimage

from bottlegan.core.seeding import numpy_stream
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.files import save_model
from bottlegan.models.paradigms import BottleGAN
from bottlegan.normalize.choice import MakeMap, MapChoice
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.normalize.slides.one import SlideOptions, map_slide
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.slides.grid import Region
from bottlegan.slides.reader import open_slide
from bottlegan.slides.writer import PyramidWriter
from bottlegan.stain.style import LABS, draw_style

tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("simplejpeg", reason="needs pip install 'bottlegan[slides]'")
WIDTH, HEIGHT, TILE = 1200, 640, 128
STYLE = draw_style(numpy_stream(5, "spare", 1), "lab", LABS)
GLASS = tuple(from_batch(render(torch.zeros(1, 2, 1, 1), STYLE))[0][0, 0].tolist())  # light gray
GREEN = (20, 120, 60)
TISSUE = slice(160, 480), slice(100, 420)


def find_pen(levels: Pixels) -> NDArray[np.bool_]:
    return (levels == GREEN).all(2)


@pytest.fixture(scope="module")
def slide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A slide of glass with a piece of tissue on it, and strokes of a green pen on both."""
    levels = np.full((HEIGHT, WIDTH, 3), GLASS, np.uint8)
    tissue = draw_tissue(4, 0, 320).concentration[None]
    levels[TISSUE] = from_batch(render(tissue, STYLE))[0]
    levels[40:52, 900:1150] = levels[300:303, 60:140] = GREEN  # few pixels on tissue, because a style is fitted to them
    path = tmp_path_factory.mktemp("glass") / "slide.tiff"
    form = {"tile": (TILE, TILE), "photometric": "rgb", "metadata": None, "compression": "zlib"}
    with tifffile.TiffWriter(path) as file:
        file.write(levels, resolution=(1e4, 1e4), resolutionunit="CENTIMETER", **form)
        file.write(levels[::2, ::2], subfiletype=1, **form)
    return path


@pytest.fixture(scope="module")
def model(plain_prior: BottleGAN, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "plain.safetensors"
    save_model(plain_prior, path)
    return path


@pytest.fixture(scope="module")
def normalizer(slide: Path, model: Path) -> Normalizer:
    """Fitted to the slide, and maps pen as well."""
    return Normalizer.fit(slide, model=model, everything=True)


@pytest.fixture(scope="module")
def fitted(slide: Path, model: Path) -> MakeMap:
    """What gives the map that is fitted to the slide, whatever it is asked for."""
    with open_slide(slide) as opened:
        chosen = MapChoice(model).prepare()(opened)
    return lambda _: chosen


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, Pixels]:
    """Keep the finest level as it is before JPEG, under `levels`."""
    kept: dict[str, Pixels] = {}

    def add(self: PyramidWriter, level: int, index: int, data: bytes) -> None:
        grid = self.grids[0]
        if level == 0:
            whole = kept.setdefault("levels", np.zeros((grid.region.height, grid.region.width, 3), np.uint8))
            tile = grid[index]
            whole[tile.within(grid.region)] = np.frombuffer(data, np.uint8).reshape(tile.height, tile.width, 3)

    monkeypatch.setattr(PyramidWriter, "encode", lambda _, levels: levels.tobytes())
    monkeypatch.setattr(PyramidWriter, "add", add)
    return kept


def read(slide: Path, level: int = 0) -> Pixels:
    with open_slide(slide) as opened:
        return opened.read(Region(level, 0, 0, *opened.levels[level]))


@pytest.mark.parametrize("level", [0, 1])
def test_pen_stays_and_all_else_is_as_the_normalizer_maps_it(
    slide: Path, tmp_path: Path, normalizer: Normalizer, fitted: MakeMap, shown: dict[str, Pixels], level: int
) -> None:
    map_slide(slide, tmp_path / "out.tiff", fitted, SlideOptions(level=level))
    before, after = read(slide, level), shown["levels"]
    mapped, pen = normalizer(before), find_pen(before)
    assert (after[pen] == before[pen]).all()
    assert (mapped[pen] != before[pen]).any()
    assert (after[~pen] == mapped[~pen]).all()
    tissue = tuple(slice(each.start >> level, each.stop >> level) for each in TISSUE)
    assert pen[tissue].any()
    assert (after[tissue] != before[tissue]).any()


def test_bare_glass_comes_out_as_white_as_it_went_in_with_no_step_around_tissue(
    slide: Path, tmp_path: Path, fitted: MakeMap, shown: dict[str, Pixels]
) -> None:
    map_slide(slide, tmp_path / "out.tiff", fitted)
    before, after = read(slide), shown["levels"].astype(int)
    glass = (before == GLASS).all(2)
    away = ndimage.distance_transform_cdt(glass, "chessboard")
    near, far = after[(away > 0) & (away < 4)], after[away > 100]
    assert len(near) > 100
    assert len(far) > 10_000
    assert (near == far[0]).all()
    assert (far == far[0]).all()
    assert far[0].min() >= min(GLASS) - 1
    assert np.ptp(far[0]) <= 1, "white, and not a tint"
    assert np.ptp(GLASS) > 2, "although it went in as one"


def test_grainy_glass_stays_even_and_is_not_turned_into_speckle(
    slide: Path, tmp_path: Path, fitted: MakeMap, shown: dict[str, Pixels]
) -> None:
    levels = read(slide).copy()
    glass = (levels == GLASS).all(2)
    grain = np.random.default_rng(0).integers(-2, 3, levels.shape)
    levels[glass] = (levels[glass] + grain[glass]).clip(0, 255)
    form = {"tile": (TILE, TILE), "photometric": "rgb", "metadata": None, "compression": "zlib"}
    with tifffile.TiffWriter(tmp_path / "grainy.tiff") as file:
        file.write(levels, **form)
        file.write(levels[::2, ::2], subfiletype=1, **form)
    map_slide(tmp_path / "grainy.tiff", tmp_path / "out.tiff", fitted)
    after = shown["levels"].astype(float)
    away = ndimage.distance_transform_cdt(glass, "chessboard")
    near, far = after[(away > 0) & (away < 8)], after[away > 100]
    assert np.abs(near.mean(0) - far.mean(0)).max() < 1
    assert far.std(0).max() < 4 * grain.std()


def test_a_region_of_tissue_and_glass_is_as_in_the_whole(
    slide: Path, tmp_path: Path, fitted: MakeMap, shown: dict[str, Pixels]
) -> None:
    map_slide(slide, tmp_path / "whole.tiff", fitted)
    whole = shown.pop("levels")
    map_slide(slide, tmp_path / "part.tiff", fitted, SlideOptions(region="333,100,300,211"))
    assert (shown["levels"] == whole[100:311, 333:633]).all()


def test_everything_is_mapped_if_asked_for(
    slide: Path, model: Path, tmp_path: Path, normalizer: Normalizer, shown: dict[str, Pixels]
) -> None:
    map_slide(slide, tmp_path / "out.tiff", MapChoice(model, everything=True).prepare())
    assert (shown["levels"] == normalizer(read(slide))).all()
