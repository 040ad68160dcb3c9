"""Pictures of the viewer and of a real slide: `make pictures SLIDE=CMU-1-Small-Region.svs` draws all of them anew.

They are kept in docs/images, because they need a browser and a slide that is not part of this repository. Draw them
again whenever the shipped prior or the viewer's page changes. With RUN=folder, the picture of a federation as well.
"""

import argparse
import io
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Browser

from bottlegan.bench.browser import Screen, open_browser
from bottlegan.imaging.files import Pixels, write_image
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.document import PRIOR
from bottlegan.models.weights import read_weights, write_weights
from bottlegan.normalize.choice import MapChoice
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.slides.grid import Region
from bottlegan.slides.reader import open_slide
from bottlegan.stain.style import LABORATORIES
from bottlegan.viewer import board
from bottlegan.viewer.server import make_app, serving
from bottlegan.viewer.session import Settings, open_session
from bottlegan.viewer.slide_routes import list_routes

IMAGES = Path(__file__).parents[1] / "images"
SIDE = 508  # pixels that the real slide is wide, before and after
GAP = 8
FRAMES, PAUSE = 36, 70  # of the animation, and milliseconds of each
VIEW = "x=1180&y=1360&zoom=0.7"
NEAR = "x=1190&y=1180&zoom=0.62"
SETTLED = "body[data-state=settled]"


def draw_real_slide(slide: Path) -> None:
    """Draw the slide as scanned beside the same as it is normalized."""
    with open_slide(slide) as opened:
        whole = opened.read(Region(0, 0, 0, *opened.levels[0]))
        mapped = MapChoice(PRIOR).prepare()(opened).convert(whole)
    parts = [_shrink(whole), _shrink(mapped)]
    page = np.full((parts[0].shape[0], 2 * SIDE + GAP, 3), 255, np.uint8)
    page[:, :SIDE], page[:, SIDE + GAP :] = parts
    Image.fromarray(page).save(IMAGES / "real-slide.jpg", quality=90, subsampling=0)


def shoot_viewer(browser: Browser, slide: Path) -> None:
    """Draw the whole page, with a pixel picked and styles to choose from."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "labs.safetensors"
        codes = {f"lab-{number}": Normalizer.fit(_draw_lab(number)).code for number in (1, 3, 5)}
        write_weights(read_weights(PRIOR).with_styles(codes), model)
        with showing(browser, [slide], "view.html", f"#{VIEW}", (1280, 800), model=model) as screen:
            screen.settle()
            screen.page.keyboard.press("c")
            screen.page.wait_for_selector("#pixel:not([hidden])")
            _save(screen, "viewer.jpg")


def animate_divider(browser: Browser, slide: Path) -> None:
    """Draw the divider on its way over the slide and back."""
    with showing(browser, [slide], "view.html", f"#{NEAR}", (800, 500)) as screen:
        screen.settle()
        screen.page.locator("#toggle").click()  # by mouse: keys would show which part has the focus
        screen.settle()
        screen.page.evaluate("() => { document.getElementById('minimap').style.visibility = 'hidden'; }")
        stage = screen.page.locator("#stage").bounding_box()
        mouse, frames = screen.page.mouse, list[Image.Image]()
        mouse.move(stage["x"] + stage["width"] / 2, stage["y"] + stage["height"] / 2)
        mouse.down()
        for number in range(FRAMES):
            share = 0.5 + 0.4 * math.sin(2 * math.pi * number / FRAMES)
            mouse.move(stage["x"] + share * stage["width"], stage["y"] + stage["height"] / 2)
            screen.wait_for_frames()
            frames.append(Image.open(io.BytesIO(screen.page.screenshot(clip=stage))).convert("RGB"))
        mouse.up()
    first, *others = frames
    first.save(
        IMAGES / "divider.webp", save_all=True, append_images=others, duration=PAUSE, loop=0, quality=66, method=4
    )


def shoot_gallery(browser: Browser, slide: Path) -> None:
    """Draw a gallery: the real slide, simulated labs, and what is refused."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / slide.name).symlink_to(slide.resolve())
        for number in (1, 3, 4, 5, 7):
            write_image(folder / f"lab-{number}.png", _draw_lab(number))
        write_image(folder / "glass.png", np.full((400, 400, 3), 242, np.uint8))
        gray = _draw_lab(2).mean(axis=2, keepdims=True).astype(np.uint8)
        write_image(folder / "not-h-and-e.png", gray.repeat(3, axis=2) // 2 + np.array([10, 90, 20], np.uint8))
        with showing(browser, [folder], "gallery.html", "", (1280, 800)) as screen:
            screen.page.wait_for_selector(SETTLED)
            screen.page.wait_for_function("() => [...document.images].every((image) => image.complete)")
            _save(screen, "gallery.jpg")


def shoot_federation(browser: Browser, run: Path) -> None:
    """Draw the page of a federation."""
    app = make_app("board.html", board.list_routes(board.follow_run(run)))
    with serving(app) as url, _looking(browser, url, (1180, 1180)) as screen:
        screen.page.wait_for_selector(SETTLED)
        _save(screen, "federation.jpg")


@contextmanager
def showing(
    browser: Browser, sources: Sequence[Path], page: str, at: str, size: tuple[int, int], **settings: Path
) -> Iterator[Screen]:
    """Show what `bottlegan view` would, in a browser of a size."""
    with (
        open_session(sources, Settings(**settings)) as session,
        serving(make_app(page, list_routes(session))) as url,
        _looking(browser, url + at, size) as screen,
    ):
        yield screen


@contextmanager
def _looking(browser: Browser, url: str, size: tuple[int, int]) -> Iterator[Screen]:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    page.set_default_timeout(300_000)
    page.goto(url)
    yield Screen(page)
    page.close()


def _draw_lab(number: int) -> Pixels:
    return from_batch(render(draw_tissue(4, number, 512).concentration[None], LABORATORIES[number]))[0]


def _shrink(levels: Pixels) -> Pixels:
    height = round(levels.shape[0] * SIDE / levels.shape[1])
    return np.asarray(Image.fromarray(levels).resize((SIDE, height), Image.Resampling.LANCZOS))


def _save(screen: Screen, name: str) -> None:
    shot = Image.open(io.BytesIO(screen.page.screenshot())).convert("RGB")
    shot.save(IMAGES / name, quality=86, subsampling=0)


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slide", type=Path, help="OpenSlide's CMU-1-Small-Region.svs, which is CC0")
    parser.add_argument("--run", type=Path, help="the folder of a federation's run")
    given = parser.parse_args()
    draw_real_slide(given.slide)
    with open_browser() as browser:
        shoot_viewer(browser, given.slide)
        animate_divider(browser, given.slide)
        shoot_gallery(browser, given.slide)
        if given.run is not None:
            shoot_federation(browser, given.run)


if __name__ == "__main__":
    main()
