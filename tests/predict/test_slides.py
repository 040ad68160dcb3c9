import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from skimage.draw import polygon2mask
from skimage.measure import label as find_regions

from bottlegan.core.errors import InputError
from bottlegan.core.task import Task
from bottlegan.imaging.files import Pixels
from bottlegan.models.document import PRIOR
from bottlegan.models.network_file import load_network
from bottlegan.models.networks import Built, NetworkConfig
from bottlegan.predict.local import FAR, fix_statistics, measure_reach
from bottlegan.predict.outlines import SMALLEST
from bottlegan.predict.patches import predict_patches
from bottlegan.predict.predictor import Predictor
from bottlegan.predict.slides import SlideChoice, predict_slide
from bottlegan.predict.view import look_at
from bottlegan.slides.grid import Region, Size
from bottlegan.slides.reader import open_slide
from bottlegan.training.task import to_images

tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
openslide = pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")

MARGIN = 16
"""Pixels at the slide's edge that are not compared."""
AGREEING, APART = 0.9, 0.05
"""The bound, of our own network, whose layers see tissue of the slide instead of one image: see docs/predict.md."""


def see_as_it_is(path: Path) -> Predictor:
    built, said = load_network(path)
    return Predictor(built, said, PRIOR, lambda image: image)


def read_page(path: Path, level: int = 0) -> Pixels:
    with tifffile.TiffFile(path) as file:
        return file.pages[level].asarray()


def read_table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def predict(slide: Path, tmp_path: Path) -> Callable[..., Pixels]:
    """Predicts the slide in tiles of 256 px, and returns its map of classes."""

    def run(predictor: Predictor, **choice: object) -> Pixels:
        target = tmp_path / "map.tiff"
        predict_slide(predictor, slide, target, choice=SlideChoice(tile=Size(256, 256), **choice))  # type: ignore[arg-type]
        return read_page(target)

    return run


@pytest.mark.parametrize("name", ["binary", "three"])
def test_a_slide_is_predicted_as_the_image_that_it_shows(
    name: str, networks: dict[str, Path], large: Pixels, predict: Callable[..., Pixels], tmp_path: Path
) -> None:
    predictor = see_as_it_is(networks[name])
    whole, found = predictor(large), predict(predictor, probabilities=True)
    assert found.shape == large.shape[:2]
    inside = np.s_[MARGIN:-MARGIN, MARGIN:-MARGIN]
    assert (found == whole.classes)[inside].mean() >= AGREEING
    for k, label in enumerate(predictor.task.classes[1:], start=1):
        shares = read_page(tmp_path / f"map_probability_{label}.tiff") / 255
        assert np.abs(shares - whole.probabilities[k])[inside].mean() <= APART
    assert 0.02 < (found == len(predictor.task.classes) - 1).mean() < 0.9


def test_tiles_of_a_local_network_fit_together_exactly(
    networks: dict[str, Path], large: Pixels, predict: Callable[..., Pixels], tmp_path: Path
) -> None:
    predictor = see_as_it_is(networks["binary"])
    fixed = fix_statistics(predictor.built, to_images(large[None]))
    local = Predictor(fixed, predictor.document, PRIOR, lambda image: image)
    whole = local(large)
    predict(local, probabilities=True)
    shares = read_page(tmp_path / "map_probability_epithelium.tiff").astype(int)
    assert np.abs(shares - np.floor(255 * whole.probabilities[1] + 0.5)).max() <= 1


def test_what_is_fixed_is_what_was_there(networks: dict[str, Path], large: Pixels) -> None:
    built, _ = load_network(networks["binary"])
    images = to_images(large[None])
    fixed = fix_statistics(built, images)
    with torch.no_grad():
        torch.testing.assert_close(fixed(images), built(images), rtol=1e-3, atol=1e-3)
        half = fixed(images[..., :320])[..., :200]
        torch.testing.assert_close(half, fixed(images)[..., :200], rtol=1e-3, atol=1e-3)
        assert not torch.allclose(built(images[..., :320])[..., :200], built(images)[..., :200], rtol=1e-3, atol=1e-3)


def test_a_network_reaches_as_far_as_it_does() -> None:
    near = torch.nn.Conv2d(3, 2, 9, padding=4)
    far = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Upsample(size=320))
    tissue = torch.rand(2, 3, 100, 100, generator=torch.Generator().manual_seed(0))
    assert measure_reach(Built(near, 1), tissue) == 32
    assert measure_reach(Built(torch.nn.Conv2d(3, 2, 1), 1), tissue) == 0
    assert measure_reach(Built(far, 1), tissue) == FAR
    # A network with one constant answer proves nothing.
    assert measure_reach(Built(torch.nn.Sequential(near, torch.nn.Hardtanh(99.0, 100.0)), 1), tissue) == FAR


def test_a_slide_becomes_a_pyramid_that_openslide_opens(
    networks: dict[str, Path], slide: Path, predict: Callable[..., Pixels], tmp_path: Path
) -> None:
    found = predict(Predictor.load(networks["three"]))
    with openslide.OpenSlide(tmp_path / "map.tiff") as opened:
        assert opened.level_dimensions[0] == (640, 480)
        assert float(opened.properties["openslide.mpp-x"]) == pytest.approx(1.0)
        shown = np.asarray(opened.read_region((0, 0), 0, (640, 480)).convert("RGB"))
        assert opened.level_count > 1
    with tifffile.TiffFile(tmp_path / "map.tiff") as file:
        said = json.loads(file.pages[0].description)
    assert said["classes"] == ["glass", "stroma", "epithelium"]
    # Shown in the colors of the classes, and coarser levels hold classes, too.
    assert len({tuple(color) for color in shown.reshape(-1, 3)}) == len(np.unique(found))
    coarse = read_page(tmp_path / "map.tiff", 1)
    assert np.array_equal(coarse[:100, :100], found[::2, ::2][:100, :100])


def test_outlines_are_read_back_as_what_was_found(
    networks: dict[str, Path], predict: Callable[..., Pixels], tmp_path: Path
) -> None:
    found = predict(Predictor.load(networks["three"]))
    features = json.loads((tmp_path / "map.geojson").read_text())["features"]
    assert {each["properties"]["classification"]["name"] for each in features} == {"stroma", "epithelium"}
    for k, name in ((1, "stroma"), (2, "epithelium")):
        drawn = np.zeros(found.shape, np.bool_)
        for feature in features:
            assert feature["properties"]["objectType"] == "annotation"
            assert feature["geometry"]["type"] == "Polygon"
            if feature["properties"]["classification"]["name"] == name:
                rings = [np.array(ring)[:, ::-1] / 2 - 0.5 for ring in feature["geometry"]["coordinates"]]
                assert all((ring[0] == ring[-1]).all() and len(ring) >= 4 for ring in rings)
                region = polygon2mask(found.shape, rings[0])
                for hole in rings[1:]:
                    region &= ~polygon2mask(found.shape, hole)
                drawn |= region
        # Less regions and holes of fewer than 8 pixels, of which a network that was trained for seconds finds a lot.
        regions = find_regions(found == k, connectivity=1)
        wanted = (regions > 0) & (np.bincount(regions.ravel())[regions] >= SMALLEST)
        holes = find_regions(~wanted, connectivity=2)
        wanted |= (holes > 0) & (np.bincount(holes.ravel())[holes] < SMALLEST)
        assert (drawn & wanted).sum() / (drawn | wanted).sum() > 0.9
    assert len({feature["id"] for feature in features}) == len(features)


def test_areas_are_counted(networks: dict[str, Path], predict: Callable[..., Pixels], tmp_path: Path) -> None:
    found = predict(Predictor.load(networks["binary"]))
    rows = read_table(tmp_path / "map.csv")
    assert [row["class"] for row in rows] == ["other", "epithelium"]
    assert [int(row["pixels"]) for row in rows] == np.bincount(found.ravel()).tolist()
    assert float(rows[1]["mm2"]) == pytest.approx((found == 1).sum() / 1e6, abs=1e-6)
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1, abs=1e-5)


def test_the_same_slide_gives_the_same_bytes_with_any_number_of_threads(
    networks: dict[str, Path], slide: Path, tmp_path: Path
) -> None:
    for threads in (1, 3):
        choice = SlideChoice(tile=Size(128, 128), threads=threads)
        predict_slide(Predictor.load(networks["plain"]), slide, tmp_path / f"{threads}.tiff", choice=choice)
    for ending in ("tiff", "geojson", "csv"):
        assert (tmp_path / f"1.{ending}").read_bytes() == (tmp_path / f"3.{ending}").read_bytes()


def test_a_slide_is_read_at_the_resolution_of_the_network(slide: Path, large: Pixels) -> None:
    with open_slide(slide) as opened:
        view = look_at(opened, 1.0, None)
        assert (view.level, view.scale, view.size) == (1, 1.0, Size(640, 480))
        assert np.array_equal(view.read(view.whole)[0], large)
        assert look_at(opened, None, 2).size == Size(320, 240)
        between = look_at(opened, 0.8, None)
        assert between.level == 0
        assert between.size == Size(800, 600)
        assert between.mpp == pytest.approx((0.8, 0.8))
        # A part is the same as in the whole.
        everything, _ = between.read(between.whole)
        part = Region(0, 200, 104, 96, 64)
        assert np.abs(between.read(part)[0].astype(int) - everything[part.within(between.whole)]).max() <= 2
        assert look_at(opened, 0.25, None).size == Size(2560, 1920)


@pytest.mark.parametrize(
    ("micrometers", "level", "message"),
    [
        (None, None, "the network does not state which one it was trained at; give the level to read with --level"),
        (0.05, None, "give a slide with a finer scan"),
        (None, 3, "has no level 3; its levels are 0 to 2"),
    ],
)
def test_a_resolution_that_cannot_be_read_is_refused(
    slide: Path, micrometers: float | None, level: int | None, message: str
) -> None:
    with open_slide(slide) as opened, pytest.raises(InputError, match=message):
        look_at(opened, micrometers, level)


def test_nothing_is_left_of_a_slide_that_fails(
    networks: dict[str, Path], slide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, levels: Pixels) -> None:
        raise InputError("no more")

    monkeypatch.setattr("bottlegan.predict.predictor.LocalPredictor.predict", fail)
    with pytest.raises(InputError, match="no more"):
        predict_slide(
            Predictor.load(networks["plain"]), slide, tmp_path / "a.tiff", choice=SlideChoice(probabilities=True)
        )
    assert not list(tmp_path.iterdir())


def test_patches_of_a_slide_become_pixels(networks: dict[str, Path], slide: Path, tmp_path: Path) -> None:
    predictor = see_as_it_is(networks["patches"])
    done = predict_patches(predictor, slide, tmp_path / "map.tiff", choice=SlideChoice(probabilities=True))
    found = read_page(tmp_path / "map.tiff")
    assert found.shape == (8, 10)
    rows = read_table(tmp_path / "map.csv")
    assert len(rows) == (found != 255).sum() == sum(done.counts.values())
    assert found[0, 0] == 255  # glass
    assert found[7, 3] == 255  # cut off by the slide's edge
    for row in rows:
        x, y = int(row["x"]) // 128, int(row["y"]) // 128
        shares = [float(row[name]) for name in predictor.task.classes]
        assert predictor.task.classes[found[y, x]] == row["class"]
        assert sum(shares) == pytest.approx(1, abs=1e-4)
        assert int(np.argmax(shares)) == found[y, x]
    # The same as for each patch alone.
    with open_slide(slide) as opened:
        view, one = look_at(opened, predictor.task.micrometers, None), rows[-1]
        x, y = (round(int(one[key]) / view.downsample) for key in "xy")
        levels, _ = view.read(Region(0, x, y, predictor.document.crop, predictor.document.crop))
    alone = predictor(levels).probabilities
    assert [float(one[name]) for name in predictor.task.classes] == pytest.approx(alone.tolist(), abs=1e-4)
    assert (tmp_path / "map.geojson").exists()
    assert (tmp_path / "map_probability_much-epithelium.tiff").exists()


def test_monais_instance_norm_is_fixed_as_well(
    save_as: Callable[[Path, NetworkConfig, Task], Path], large: Pixels, predict: Callable[..., Pixels], tmp_path: Path
) -> None:
    pytest.importorskip("monai", reason="needs pip install 'bottlegan[adapters]'")
    factory = "monai.networks.nets:UNet"
    sizes = {"spatial_dims": 2, "in_channels": 3, "out_channels": 2, "channels": [4, 8], "strides": [2]}
    config = NetworkConfig(factory=factory, arguments=sizes)  # type: ignore[arg-type]
    path = save_as(tmp_path / "unet.safetensors", config, Task(micrometers=1.0))
    predictor = Predictor.load(path, allowed=[factory])
    found = predict(predictor)
    assert found.shape == large.shape[:2]
    fixed = fix_statistics(predictor.built, to_images(large[None]))
    with torch.no_grad():
        images = to_images(large[None])
        torch.testing.assert_close(fixed(images), predictor.built(images), rtol=1e-3, atol=1e-3)


def test_the_input_is_never_overwritten(networks: dict[str, Path], slide: Path) -> None:
    predictor = Predictor.load(networks["plain"])
    with pytest.raises(InputError, match="is an input"):
        predict_slide(predictor, slide, slide)
    with pytest.raises(InputError, match="slides are written as TIFF"):
        predict_slide(predictor, slide, slide.with_suffix(".png"))
    assert replace(predictor.document) == predictor.document
