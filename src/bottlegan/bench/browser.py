"""A real browser for measurements, pictures and tests: the system's Chromium, headless, with software rendering."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from bottlegan.core.errors import MissingError
from bottlegan.imaging.files import Pixels

VARIABLE = "BOTTLEGAN_CHROMIUM"
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
OVER_THE_SLIDE = ".divider, .side, .minimap, .corner"


def find_browser() -> str | None:
    """Return the path of the browser: the environment variable's, or Debian's Chromium, or Chrome."""
    return os.environ.get(VARIABLE) or shutil.which("chromium") or shutil.which("google-chrome")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a browser that connects only to this machine."""
    path = find_browser()
    if path is None:
        raise MissingError(f"there is no browser; install Debian's chromium, or set {VARIABLE} to one")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Screen:
    """A user's view of the page of slides, and actions on it."""

    def __init__(self, page: Page) -> None:
        """Take a page."""
        self.page = page

    def settle(self) -> None:
        """Wait until the view rests and all of its tiles and its map are loaded."""
        self.page.wait_for_function("() => window.bottlegan?.viewer.world.getItemAt(0)")
        self.page.wait_for_function(
            """() => { const { zoomSpring, centerSpringX, centerSpringY } = bottlegan.viewer.viewport;
            return [zoomSpring, centerSpringX, centerSpringY].every((spring) => spring.isAtTargetValue()); }"""
        )
        self.page.wait_for_selector("#stage[data-state=settled]")
        self.wait_for_frames()

    def wait_for_frames(self) -> None:
        """Wait for two frames: one that draws, and one after which the drawing is shown."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def press(self, *keys: str) -> None:
        """Press keys, and wait until the view settles."""
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def shoot(self) -> tuple[Pixels, dict[str, float]]:
        """Return the pixels of the stage without overlaid controls, and the position of the slide there."""
        self.page.evaluate(
            f"""() => document.querySelectorAll("{OVER_THE_SLIDE}").forEach((each) =>
            {{ each.style.visibility = "hidden"; }})"""
        )
        box = self.page.locator("#slide").bounding_box()
        shot = Image.open(BytesIO(self.page.screenshot(clip=box)))
        at = self.page.evaluate("() => bottlegan.drawer.findImage(bottlegan.viewer.world.getItemAt(0))")
        return np.asarray(shot.convert("RGB")), at

    def differ(self, levels: Pixels) -> Pixels:
        """Return the differences (H, W), in levels, between the slide's pixels on the screen and `levels`.

        The slide must be shown pixel for pixel, as it is after pressing 1.
        """
        shown, at = self.shoot()
        if at["scale"] != 1:
            raise ValueError("press 1 first, so that each pixel of the slide has one pixel of the screen")
        left, top = int(at["x"]), int(at["y"])
        rows, columns = shown.shape[:2]
        height, width = levels.shape[:2]
        y, x = slice(max(0, top), min(rows, top + height)), slice(max(0, left), min(columns, left + width))
        wanted = levels[y.start - top : y.stop - top, x.start - left : x.stop - left]
        return np.abs(shown[y, x].astype(np.int16) - wanted).max(axis=2).astype(np.uint8)
