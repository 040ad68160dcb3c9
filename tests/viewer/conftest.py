"""A slide or two, a model that knows labs, and a real browser: Debian's Chromium, with software rendering."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.document import PRIOR
from bottlegan.models.weights import read_weights, write_weights
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES

pytest.importorskip("starlette", reason="needs pip install 'bottlegan[viewer]'")
pytest.importorskip("uvicorn", reason="needs pip install 'bottlegan[viewer]'")
tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
sync_api = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")

CHROMIUM = os.environ.get("BOTTLEGAN_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--force-color-profile=srgb",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE = 60_000  # milliseconds: a busy machine is no failure


def draw_lab(number: int, size: int = 640) -> Pixels:
    return from_batch(render(draw_tissue(4, number, size).concentration[None], LABORATORIES[number]))[0]


def write_slide(path: Path, levels: Pixels) -> Path:
    form = {"tile": (128, 128), "photometric": "rgb", "metadata": None, "compression": "jpeg"}
    with tifffile.TiffWriter(path) as file:
        file.write(levels, resolution=(1e4, 1e4), resolutionunit="CENTIMETER", **form)
        file.write(levels[::4, ::4], subfiletype=1, **form)
    return path


@pytest.fixture(scope="session")
def slides(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Slides of two labs, of a size that no tile divides."""
    folder = tmp_path_factory.mktemp("slides")
    return [write_slide(folder / f"slide-{i}.tiff", draw_lab(i)[: 600 - i, : 620 + i]) for i in (5, 2)]


@pytest.fixture(scope="session")
def model(slides: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows both labs by name."""
    fitted = {f"lab-{i}": Normalizer.fit(slide).code for i, slide in enumerate(slides)}
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    write_weights(read_weights(PRIOR).with_styles(fitted), path)
    return path


@pytest.fixture(scope="session")
def browser() -> "Iterator[sync_api.Browser]":
    if CHROMIUM is None:
        pytest.skip("there is no browser: install Debian's chromium, or set BOTTLEGAN_CHROMIUM to one")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Screen:
    """What a user sees of one page, and does to it."""

    def __init__(self, page: "sync_api.Page") -> None:
        self.page = page

    def settle(self) -> None:
        """Wait until the view rests, and all of its tiles and its map are there."""
        self.page.wait_for_function("() => window.bottlegan?.viewer.world.getItemAt(0)")
        self.page.wait_for_function(
            """() => { const { zoomSpring, centerSpringX, centerSpringY } = bottlegan.viewer.viewport;
            return [zoomSpring, centerSpringX, centerSpringY].every((spring) => spring.isAtTargetValue()); }"""
        )
        self.page.wait_for_selector("#stage[data-state=settled]")
        # Two frames: one in which it is drawn, and one after which it is shown.
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def shoot(self) -> tuple[Pixels, dict[str, float]]:
        """Return the pixels of the stage, without what lies over the slide, and where the slide begins there."""
        self.page.evaluate(
            """() => document.querySelectorAll(".divider, .side, .minimap, .corner").forEach((each) =>
            { each.style.visibility = "hidden"; })"""
        )
        box = self.page.locator("#slide").bounding_box()
        assert box is not None
        shot = Image.open(BytesIO(self.page.screenshot(clip=box)))
        at = self.page.evaluate("() => bottlegan.drawer.findImage(bottlegan.viewer.world.getItemAt(0))")
        return np.asarray(shot.convert("RGB")), at

    def differ(self, levels: Pixels) -> Pixels:
        """Return by how many levels (H, W) each pixel of the slide on the screen differs from those given."""
        shown, at = self.shoot()
        assert at["scale"] == 1, "press 1 first: one screen pixel for each of the slide"
        left, top = int(at["x"]), int(at["y"])
        rows, columns = shown.shape[:2]
        height, width = levels.shape[:2]
        y, x = slice(max(0, top), min(rows, top + height)), slice(max(0, left), min(columns, left + width))
        wanted = levels[y.start - top : y.stop - top, x.start - left : x.stop - left]
        assert wanted.size > 10_000
        return np.abs(shown[y, x].astype(int) - wanted).max(axis=2)


@pytest.fixture
def show(browser: "sync_api.Browser") -> Callable[..., AbstractContextManager[Screen]]:
    """Open an address in a page that fails the test if its console shows an error, or it asks anybody else."""

    @contextmanager
    def show(url: str, width: int = 1100, height: int = 700) -> Iterator[Screen]:
        context = browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True)
        context.set_default_timeout(PATIENCE)
        page, troubles = context.new_page(), list[str]()
        page.on("console", lambda said: troubles.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        own = (url.partition("#")[0], "blob:")
        page.on("request", lambda asked: None if asked.url.startswith(own) else troubles.append(asked.url))
        page.goto(url)
        yield Screen(page)
        context.close()
        # What software rendering says about itself is no fault of the page, nor what the server refuses on purpose.
        assert [each for each in troubles if "GPU stall" not in each and "status of 422" not in each] == []

    return show
