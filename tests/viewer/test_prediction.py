"""A network's prediction over the slide: tile by tile the same as `bottlegan predict` writes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bottlegan.core.errors import InputError
from bottlegan.core.task import IGNORED, Task
from bottlegan.models.network_file import NetworkDocument, save_network
from bottlegan.models.networks import NetworkConfig, build_network, exchanged
from bottlegan.predict.outlines import list_colors
from bottlegan.predict.predictor import Predictor
from bottlegan.predict.slides import predict_slide
from bottlegan.viewer import prediction
from bottlegan.viewer.prediction import SlideNetwork
from bottlegan.viewer.pyramid import Shelf
from bottlegan.viewer.server import make_app, serving
from bottlegan.viewer.session import Settings, open_session
from bottlegan.viewer.slide_routes import list_routes

tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
Show = Callable[..., Any]
CROP = 64


def make_network(path: Path, task: Task) -> Path:
    """Write an untrained network, whose predictions are meaningless but vary."""
    config = NetworkConfig(arguments={"width": 4})
    built = build_network(config, task, torch.Generator().manual_seed(3), crop=CROP)
    said = NetworkDocument(
        task=task, network=config, crop=CROP, mode="plain", model="0" * 64, temperature=1.0, scores={},
        weights="0" * 64, record={},
    )  # fmt: skip
    save_network(path, exchanged(built.network), said)
    return path


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Slides of the tests have pixels of 1 micrometer.
    return make_network(tmp_path_factory.mktemp("network") / "n.safetensors", Task(micrometers=1.0))


def test_tiles_are_what_a_prediction_of_the_whole_slide_says(network: Path, slides: list[Path], tmp_path: Path) -> None:
    predict_slide(Predictor.load(network), slides[0], tmp_path / "map.tiff")
    with tifffile.TiffFile(tmp_path / "map.tiff") as file:
        whole = file.pages[0].asarray()
    assert 0.02 < (whole == 1).mean() < 0.98
    painter, pyramid = SlideNetwork(network), Shelf().open(slides[0])
    grid = pyramid.grid(0)
    for column, row in ((0, 0), (2, 1), (grid.columns - 1, grid.rows - 1)):
        tile = pyramid.locate(0, column, row)
        classes = painter.paint(pyramid, 0, column, row)
        assert classes.shape == (tile.height, tile.width)
        assert (classes == whole[tile.within(grid.region)]).mean() > 0.999
    coarse = painter.paint(pyramid, 1, 0, 0)
    assert (coarse == whole[1::2, 1::2][: coarse.shape[0], : coarse.shape[1]]).mean() > 0.999


def test_patches_have_one_class_each_and_glass_none(slides: list[Path], tmp_path: Path) -> None:
    path = make_network(tmp_path / "n.safetensors", Task(kind="classification", micrometers=1.0))
    classes = SlideNetwork(path).paint(Shelf().open(slides[0]), 0, 1, 1)  # 128 x 128 pixels from 128, 128 on
    assert set(np.unique(classes)) <= {0, 1, IGNORED}
    for y in (0, CROP):
        for x in (0, CROP):
            assert len(np.unique(classes[y : y + CROP, x : x + CROP])) == 1


def test_too_much_of_a_slide_at_once_is_refused(
    network: Path, slides: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "MOST_PIXELS", 100)
    with pytest.raises(InputError, match="zoom in"):
        SlideNetwork(network).paint(Shelf().open(slides[0]), 0, 0, 0)


def test_the_page_lays_classes_over_the_slide(network: Path, slides: list[Path], show: Show) -> None:
    with (
        open_session(slides[:1], Settings(network=network)) as session,
        serving(make_app("view.html", list_routes(session))) as url,
        show(f"{url}#mode=before") as screen,
    ):
        screen.settle()
        screen.press("1")
        plain = screen.shoot()[0].astype(int)
        screen.press("n")
        screen.page.wait_for_function("() => bottlegan.drawer.predictions.isSettled")
        screen.settle()
        assert screen.page.locator("#classes").inner_text() == "epithelium"
        shown, at = screen.shoot()
        painter, pyramid = SlideNetwork(network), Shelf().open(slides[0])
        tile, classes = pyramid.locate(0, 2, 2), painter.paint(pyramid, 0, 2, 2)
        left, top = int(at["x"]) + tile.x, int(at["y"]) + tile.y
        part = (slice(top, top + tile.height), slice(left, left + tile.width))
        share = 115 / 255
        wanted = np.where((classes == 1)[..., None], (1 - share) * plain[part] + share * list_colors(2)[1], plain[part])
        assert np.abs(shown[part] - wanted).max() <= 2
        screen.press("n")
        assert (screen.shoot()[0] == plain).all()
