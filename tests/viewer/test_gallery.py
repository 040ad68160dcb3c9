"""A folder as a gallery: all slides before and after, with those that need attention first."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bottlegan.core.errors import MissingError
from bottlegan.viewer.gallery import list_entries
from bottlegan.viewer.pyramid import OPEN, Shelf
from bottlegan.viewer.server import make_app, serving
from bottlegan.viewer.session import Session, Settings, list_shown, open_session
from bottlegan.viewer.shown import Finding
from bottlegan.viewer.slide_routes import list_routes

Axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe
Show = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(slides: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two slides, bare glass, a broken slide, a mask, a hidden file and a text."""
    folder = tmp_path_factory.mktemp("gallery")
    for slide in slides:
        shutil.copy(slide, folder)
    Image.fromarray(np.full((300, 300, 3), 243, np.uint8)).save(folder / "glass.png")
    (folder / "broken.svs").write_text("no slide")
    for name in ("slide-5_mask.png", ".hidden.png", "notes.txt"):
        (folder / name).write_text("")
    return folder


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[Session]:
    with open_session([folder], Settings()) as session:
        yield session


@pytest.fixture(scope="module")
def url(session: Session) -> Iterator[str]:
    with serving(make_app("gallery.html", list_routes(session))) as url:
        yield url


def test_a_folder_shows_its_slides_and_images_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    assert [each.name for each in list_shown(folder)] == ["broken.svs", "glass.png", "slide-2.tiff", "slide-5.tiff"]
    with pytest.raises(MissingError, match="holds no slide"):
        list_shown(tmp_path)


class Known:
    """A slide with a verdict, or without one so far."""

    def __init__(self, name: str, verdict: Any, error: float | None = None) -> None:
        self.path = Path(name)
        self.finding_so_far = None if verdict is None else Finding(verdict, "why", error, None)


def test_what_needs_a_look_comes_first() -> None:
    shown: list[Any] = [
        Known("a", None),
        Known("b", "good", 0.1),
        Known("c", "uncertain", 0.2),
        Known("d", "uncertain", 0.3),
        Known("e", "refused"),
        Known("f", "good", float("inf")),
        Known("g", "known"),
        Known("h", "good", 0.1),
    ]
    entries = list_entries(shown)
    assert "".join(str(each["name"]) for each in entries) == "edcbhfga"
    assert [each["slide"] for each in entries] == [4, 3, 2, 1, 7, 5, 6, 0]
    assert entries[-1]["verdict"] == ""


def test_few_slides_are_open_at_once_and_one_in_use_stays_open(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(OPEN + 2)]
    for path in paths:
        Image.fromarray(np.full((40, 40, 3), 200, np.uint8)).save(path)
    shelf = Shelf()
    held = shelf.open(paths[0])
    for path in paths[1:]:
        shelf.open(path)
    assert shelf.open(paths[0]) is not held
    assert held.read(0, 0, 0).shape == (40, 40, 3)
    assert shelf.open(paths[-1]) is shelf.open(paths[-1])


def test_a_gallery_shows_all_slides_before_and_after(url: str, session: Session, show: Show) -> None:
    for slide in session.slides:
        assert slide.finding
    with show(url) as screen:
        page = screen.page
        page.wait_for_selector("body[data-state=settled]")
        names = page.locator(".card h2").all_inner_texts()
        assert names[:2] == ["broken.svs", "glass.png"]
        assert sorted(names[2:]) == ["slide-2.tiff", "slide-5.tiff"]
        page.wait_for_function("() => [...document.images].every((image) => image.complete && image.naturalWidth)")
        assert page.locator(".pair img").count() == 5  # one cannot be read, two are refused
        assert "cannot be read" in page.locator(".card").first.inner_text()
        page.keyboard.press("a")
        assert page.locator(".pair img:visible").count() == 2
        page.get_by_role("button", name="refused 2").click()
        assert page.locator(".card:visible").count() == 2
        page.get_by_role("button", name="all 4").click()
        page.get_by_role("link", name="slide-2.tiff").click()
        screen.settle()
        assert page.title().startswith("slide-2.tiff")
        page.get_by_role("link", name="All slides").click()
        page.wait_for_selector("body[data-state=settled]")


@pytest.mark.parametrize("width", [1280, 320])
def test_a_gallery_is_accessible_at_any_width(url: str, session: Session, show: Show, width: int) -> None:
    with show(url, width=width, height=640) as screen:
        screen.page.wait_for_selector("body[data-state=settled]")
        found = Axe().run(screen.page).response["violations"]
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []
        assert screen.page.evaluate("() => document.documentElement.scrollWidth") <= width
