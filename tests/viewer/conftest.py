"""A slide or two, a model that knows labs, and a real browser: Debian's Chromium, with software rendering."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

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
browsing = pytest.importorskip("bottlegan.bench.browser", reason="needs pip install 'bottlegan[bench]'")

PATIENCE = 180_000  # milliseconds, enough for a busy machine


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
def browser() -> "Iterator[browsing.Browser]":
    if browsing.find_browser() is None:
        pytest.skip(f"there is no browser: install Debian's chromium, or set {browsing.VARIABLE} to one")
    with browsing.open_browser() as browser:
        yield browser


@pytest.fixture
def show(browser: "browsing.Browser") -> "Callable[..., AbstractContextManager[browsing.Screen]]":
    """Open an address in a page that fails the test on errors in its console and on requests to other hosts."""

    @contextmanager
    def show(url: str, width: int = 1100, height: int = 700, held: str | None = None) -> "Iterator[browsing.Screen]":
        context = browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True)
        context.set_default_timeout(PATIENCE)
        page, troubles = context.new_page(), list[str]()
        page.on("console", lambda said: troubles.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        if held is not None:  # what is asked for there is never answered
            page.route(held, lambda route: None)
        own = (url.partition("#")[0], "blob:")
        page.on("request", lambda asked: None if asked.url.startswith(own) else troubles.append(asked.url))
        page.goto(url)
        yield browsing.Screen(page)
        context.close()
        # Messages of the software renderer, and deliberately refused requests, are not faults of the page.
        assert [each for each in troubles if "GPU stall" not in each and "status of 422" not in each] == []

    return show
