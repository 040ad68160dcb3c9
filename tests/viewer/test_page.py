"""The page in a real browser: what is on the screen, compared with the kernel pixel by pixel."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bottlegan.imaging.files import Pixels
from bottlegan.normalize.choice import MapChoice
from bottlegan.normalize.slides.one import map_slide
from bottlegan.slides.grid import Region
from bottlegan.slides.reader import open_slide
from bottlegan.viewer.server import make_app, serving
from bottlegan.viewer.session import Settings, open_session
from bottlegan.viewer.slide_routes import list_routes

Axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe
Show = Callable[..., Any]
COARSE = 2
"""Largest error of the coarse table on the screen, in levels, on tissue."""


@contextmanager
def serve(paths: list[Path], **settings: Any) -> Iterator[str]:
    with (
        open_session(paths, Settings(**settings)) as session,
        serving(make_app("view.html", list_routes(session))) as url,
    ):
        yield url


@pytest.fixture(scope="module")
def url(slides: list[Path], model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two slides, with a model that knows two labs, and images to go to."""
    with serve(slides, model=model, like=slides[1], folder=tmp_path_factory.mktemp("written")) as url:
        yield url


def read_whole(path: Path) -> Pixels:
    with open_slide(path) as slide:
        return slide.read(Region(0, 0, 0, *slide.levels[0]))


def convert(path: Path, choice: MapChoice) -> Pixels:
    """Return a whole slide as `bottlegan normalize` would map it."""
    with open_slide(path) as slide:
        return choice.prepare()(slide).convert(read_whole(path))


def test_before_is_the_slide_and_after_is_the_kernels(url: str, slides: list[Path], model: Path, show: Show) -> None:
    whole, mapped = read_whole(slides[0]), convert(slides[0], MapChoice(model))
    with show(url) as screen:
        screen.settle()
        screen.press("1", "b")
        assert screen.differ(whole).max() == 0
        screen.press("a")
        off = screen.differ(mapped)
        assert off.max() <= COARSE
        assert off.any()  # otherwise the exact table would be useless
        screen.press("x")
        assert screen.differ(mapped).max() == 0


@pytest.mark.parametrize("target", ["style:lab-1", "slide:1", "like"])
def test_slides_are_brought_to_labs_to_each_other_and_to_other_images(
    url: str, slides: list[Path], model: Path, show: Show, target: str
) -> None:
    choice = MapChoice(model, to="lab-1") if target == "style:lab-1" else MapChoice(model, like=slides[1])
    with show(f"{url}#to={target}&mode=after&exact") as screen:
        screen.settle()
        screen.press("1")
        assert screen.differ(convert(slides[0], choice)).max() == 0


@pytest.mark.parametrize("width", [1100, 500])
def test_a_picture_of_the_slide_is_seen_before_its_tiles_and_at_the_same_place(
    url: str, slides: list[Path], show: Show, width: int
) -> None:
    whole = read_whole(slides[0])
    with show(url, width, held="**/tiles/**") as screen:
        screen.page.wait_for_function("() => window.bottlegan?.viewer.world.getItemAt(0)")
        screen.wait_for_frames()
        shown, at = screen.shoot()
        height, wide = (round(side * at["scale"]) for side in whole.shape[:2])
        left, top = round(at["x"]), round(at["y"])
        wanted = Image.fromarray(whole).resize((wide, height), Image.Resampling.BOX)
        off = np.abs(shown[top : top + height, left : left + wide].astype(int) - wanted)
        moved = np.abs(shown[top : top + height, left + 3 : left + wide].astype(int) - np.asarray(wanted)[:, :-3])
        assert off.mean() < 12  # how the browser scales is its own affair
        assert off.mean() < 0.6 * moved.mean()


def test_the_picture_goes_when_the_tiles_are_there_and_is_not_shown_for_another_place(url: str, show: Show) -> None:
    with show(url) as screen:
        screen.settle()
        assert screen.page.locator("#picture").count() == 0
    for place in ("#slide=1", "#slide=0&x=100&y=100&zoom=2"):
        with show(url + place, held="**/tiles/**") as screen:
            screen.page.wait_for_function("() => window.bottlegan?.viewer.world.getItemAt(0)")
            assert screen.page.locator("#picture").count() == 0


def test_a_slide_that_takes_long_to_read_has_no_picture(
    slides: list[Path], show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bottlegan.viewer.pyramid.QUICK", 1000)
    with serve(slides) as url, show(url) as screen:
        screen.settle()
        screen.press("1", "b")
        assert screen.differ(read_whole(slides[0])).max() == 0


def test_the_divider_parts_before_from_after(url: str, slides: list[Path], model: Path, show: Show) -> None:
    whole, mapped = read_whole(slides[0]), convert(slides[0], MapChoice(model))
    assert np.abs(whole.astype(int) - mapped).mean() > 5
    with show(f"{url}#exact") as screen:
        screen.settle()
        screen.press("1")
        handle = screen.page.locator("#divider")
        box = handle.bounding_box()
        stage = screen.page.locator("#stage").bounding_box()
        screen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
        screen.page.mouse.down()
        screen.page.mouse.move(stage["x"] + 0.25 * stage["width"], box["y"] + 40, steps=4)
        screen.page.mouse.up()
        assert handle.get_attribute("aria-valuenow") == "25"
        screen.press("ArrowRight")
        assert handle.get_attribute("aria-valuenow") == "27"
        shown, at = screen.shoot()
        edge = round(0.27 * shown.shape[1]) - max(0, int(at["x"]))
        assert screen.differ(whole)[:, : edge - 1].max() == 0
        assert screen.differ(mapped)[:, edge + 1 :].max() == 0


def test_panning_and_zooming_show_other_parts(url: str, slides: list[Path], show: Show) -> None:
    whole = read_whole(slides[0])
    with show(url, width=700, height=500) as screen:
        screen.settle()
        screen.press("b", "1")
        before = screen.shoot()[1]
        screen.press("ArrowRight", "ArrowDown")
        after = screen.shoot()[1]
        assert after["x"] < before["x"]
        assert after["y"] < before["y"]
        assert screen.differ(whole).max() == 0
        stage = screen.page.locator("#stage").bounding_box()
        x, y = stage["x"] + 100, stage["y"] + 100
        screen.page.mouse.move(x, y)
        screen.page.mouse.down()
        screen.page.mouse.move(x + 60, y + 30, steps=5)
        screen.page.mouse.up()
        screen.settle()
        assert screen.shoot()[1]["x"] > after["x"]
        assert screen.differ(whole).max() == 0
        screen.press("+")
        assert screen.shoot()[1]["scale"] == pytest.approx(1.5, rel=1e-6)
        screen.press("0")
        assert screen.shoot()[1]["scale"] < 1


def test_a_click_picks_a_pixel(url: str, slides: list[Path], model: Path, show: Show) -> None:
    whole, mapped = read_whole(slides[0]), convert(slides[0], MapChoice(model))
    with show(url) as screen:
        screen.settle()
        screen.press("1")
        stage = screen.page.locator("#stage").bounding_box()
        at = screen.shoot()[1]
        screen.page.mouse.click(stage["x"] + at["x"] + 123, stage["y"] + at["y"] + 245)
        screen.page.wait_for_selector("#pixel:not([hidden])")
        x, y, said = 123, 245, screen.page.locator("#pixel").inner_text()
        assert f"{x}, {y}" in said
        for levels in (whole, mapped):
            assert ", ".join(map(str, levels[y, x])) in said
        assert "Hematoxylin" in said


def test_overlays_change_what_is_seen(url: str, show: Show) -> None:
    with show(f"{url}#mode=after") as screen:
        screen.settle()
        plain = screen.shoot()[0]
        for key, name in (("u", "#doubt"), ("t", "#tissue")):
            before = screen.page.evaluate("() => bottlegan.drawer.frames")
            screen.press(key)
            assert screen.page.locator(name).is_checked()
            screen.page.wait_for_function(f"() => bottlegan.drawer.frames > {before + 1}")
            screen.page.wait_for_function(
                "() => bottlegan.drawer.textures.doubts" if key == "u" else "() => bottlegan.drawer.tissue"
            )
            screen.settle()
            assert (np.abs(screen.shoot()[0].astype(int) - plain).max(axis=2) > 8).mean() > 0.01
            screen.press(key)
            screen.page.wait_for_function("() => !bottlegan.drawer.tissue && !bottlegan.drawer.look.doubt")
            screen.settle()
            assert (screen.shoot()[0] == plain).all()


def test_a_link_leads_to_the_same_view(url: str, show: Show) -> None:
    with show(url) as screen:
        screen.settle()
        screen.press("]", "g", "+", "+", "ArrowLeft", ".")
        screen.settle()
        shown, link = screen.shoot()[0], screen.page.url
        assert "slide=1" in link
    with show(link) as screen:
        screen.settle()
        assert screen.page.title().startswith("slide-2.tiff")
        assert np.abs(screen.shoot()[0].astype(int) - shown).mean() < 0.5


def test_what_is_seen_is_saved(url: str, show: Show) -> None:
    with show(url) as screen:
        screen.settle()
        shown = screen.shoot()[0]
        with screen.page.expect_download() as saving:
            screen.page.keyboard.press("s")
        assert saving.value.suggested_filename == "slide-5-view.png"
        assert (np.asarray(Image.open(saving.value.path()).convert("RGB")) == shown).all()


def test_the_whole_slide_is_written_as_the_command_does(
    slides: list[Path], model: Path, tmp_path: Path, show: Show
) -> None:
    with serve(slides, model=model, folder=tmp_path) as url, show(f"{url}#to=style:lab-1") as screen:
        screen.settle()
        assert screen.page.locator("#target-name").input_value() == "slide-5-lab-1.tiff"
        screen.page.get_by_role("button", name="Write the whole slide").click()
        screen.page.wait_for_function("() => document.getElementById('job-text').textContent.startsWith('Wrote')")
        screen.page.get_by_role("button", name="Write the whole slide").click()
        screen.page.wait_for_function("() => document.getElementById('job-text').textContent.includes('already')")
    map_slide(slides[0], tmp_path / "wanted.tiff", MapChoice(model, to="lab-1").prepare())
    assert (tmp_path / "slide-5-lab-1.tiff").read_bytes() == (tmp_path / "wanted.tiff").read_bytes()


def test_glass_is_refused_and_shown_as_it_is(tmp_path: Path, show: Show) -> None:
    glass = np.full((300, 400, 3), 240, np.uint8)
    Image.fromarray(glass).save(tmp_path / "glass.png")
    with serve([tmp_path / "glass.png"]) as url, show(url) as screen:
        screen.settle()
        assert screen.page.locator("#verdict").inner_text() == "refused"
        assert "tissue" in screen.page.locator("#reason").inner_text()
        screen.press("1", "a")
        assert screen.differ(glass).max() == 0


@pytest.mark.parametrize("width", [1280, 320])
def test_the_page_is_accessible_at_any_width(url: str, show: Show, width: int) -> None:
    with show(url, width=width, height=640) as screen:
        screen.settle()
        for keys in ((), ("?",)):
            for key in keys:
                screen.page.keyboard.press(key)
            found = Axe().run(screen.page).response["violations"]
            assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []
        screen.page.keyboard.press("Escape")
        screen.page.keyboard.press("p")
        assert screen.page.evaluate("() => document.documentElement.scrollWidth") <= width
        stage = screen.page.locator("#stage").bounding_box()
        assert stage["width"] >= min(width, 800) * 0.7
        assert stage["height"] >= 150
        shot = Image.open(BytesIO(screen.page.screenshot()))
        assert shot.width == width
