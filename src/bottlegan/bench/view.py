"""The viewer, measured in a real browser with software rendering. A graphics processor can only be faster."""

import http.client
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
from playwright.sync_api import Browser

from bottlegan.bench.browser import Screen, open_browser
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.imaging.files import Pixels
from bottlegan.models.document import PRIOR
from bottlegan.normalize.choice import MapChoice
from bottlegan.reproduce.table2_files import find_commit
from bottlegan.slides.grid import Region
from bottlegan.slides.reader import open_slide
from bottlegan.viewer.pyramid import Shelf
from bottlegan.viewer.server import make_app, serving
from bottlegan.viewer.session import Settings, open_session
from bottlegan.viewer.slide_routes import list_routes

WIDTH, HEIGHT = 1280, 800
PATIENCE = 120_000  # milliseconds
MOST_TILES = 200
WATCH = """new PerformanceObserver((seen) => {  // when the slide's picture is on the screen, in milliseconds
  for (const each of seen.getEntries()) window.seen = performance.timeOrigin + each.renderTime;
}).observe({ type: "element", buffered: true });"""
LAP = """async (seconds) => {  // pan in a circle, a little in each frame, and count what is drawn
  const { viewer, drawer } = bottlegan;
  const { viewport } = viewer;
  const center = viewport.getCenter();
  const radius = 0.35 * viewport.getBounds().width;
  const [begun, frames] = [performance.now(), drawer.frames];
  for (;;) {
    const angle = (performance.now() - begun) / 400;
    const [x, y] = [center.x + radius * Math.cos(angle), center.y + radius * Math.sin(angle)];
    viewport.panTo(new OpenSeadragon.Point(x, y), true);
    await new Promise((done) => requestAnimationFrame(done));
    if (performance.now() - begun > 1000 * seconds) break;
  }
  const speed = (1000 * (drawer.frames - frames)) / (performance.now() - begun);
  viewport.panTo(center, true);
  return speed;
}"""


class Opening(NamedTuple):
    """Seconds from opening a slide until something is on the screen of a running browser."""

    first: float
    """The slide's own pixels, at their place: a picture of the whole slide. So says the browser (Element Timing)."""
    tiles: float
    """Its first tile, two frames after it was drawn."""
    settled: float
    """All tiles and the map."""


def bench_view(
    slide: Path, *, repeats: int = 3, seconds: float = 4.0, progress: Progress | None = None
) -> dict[str, Json]:
    """Return all figures: first pixels, frames per second, tiles, and differences between screen and kernel."""
    progress = progress or Silent()
    with open_browser() as browser:
        opened = [time_opening(browser, slide) for _ in progress.track(range(repeats), "first pixels", repeats)]
        with showing(browser, slide) as screen:
            screen.settle()
            screen.press("1")
            laps = [
                (measure_frames(screen, "b", seconds), measure_frames(screen, "a", seconds))
                for _ in progress.track(range(repeats), "panning", repeats)
            ]
            differences = measure_differences(screen, slide)
        plain, mapped = median(speed for speed, _ in laps), median(speed for _, speed in laps)
    return {
        "slide": slide.name,
        "screen": f"{WIDTH} x {HEIGHT}",
        "seconds to first pixels": median(each.first for each in opened),
        "seconds to first tiles": median(each.tiles for each in opened),
        "seconds to all tiles and the map": median(each.settled for each in opened),
        "frames a second, map off": plain,
        "frames a second, map on": mapped,
        "map on as a share of off": mapped / plain,
        "milliseconds a tile, median": time_tiles(slide),
        "levels off, interpolated": differences["interpolated"],
        "levels off, exact": differences["exact"],
        "megabytes of the wheel": measure_wheel(),
        "load average": os.getloadavg()[0],
        "commit": find_commit(),
    }


@contextmanager
def showing(browser: Browser, slide: Path) -> Iterator[Screen]:
    """Show a slide like `bottlegan view`."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    page.set_default_timeout(PATIENCE)
    page.add_init_script(WATCH)
    with open_session([slide], Settings()) as session, serving(make_app("view.html", list_routes(session))) as url:
        page.goto(url)
        yield Screen(page)
        page.close()


def time_opening(browser: Browser, slide: Path) -> Opening:
    """Return the seconds from opening a slide until its picture, its first tile and its map are on the screen."""
    start = time.time()  # the browser's clock, too
    with showing(browser, slide) as screen:
        screen.page.wait_for_function("() => window.bottlegan?.drawer.drawn > 0")
        screen.wait_for_frames()
        tiles = time.time() - start
        screen.settle()
        settled = time.time() - start
        seen = screen.page.evaluate("() => window.seen")
    # A slide that takes long to read has no picture.
    return Opening(tiles if seen is None else seen / 1000 - start, tiles, settled)


def measure_frames(screen: Screen, key: str, seconds: float) -> float:
    """Return the frames per second while panning, as scanned (b) or mapped (a), after a lap that loads all tiles."""
    screen.press(key)
    screen.page.evaluate(LAP, seconds / 2)
    screen.settle()
    return float(screen.page.evaluate(LAP, seconds))


def measure_differences(screen: Screen, slide: Path) -> dict[str, dict[str, Json]]:
    """Return the differences, in levels, between pixels on the screen and the kernel's, interpolated and exact."""
    with open_slide(slide) as opened:
        whole: Pixels = opened.read(Region(0, 0, 0, *opened.levels[0]))
        mapped = MapChoice(PRIOR).prepare()(opened).convert(whole)
    differences: dict[str, dict[str, Json]] = {}
    for name, key in (("interpolated", "a"), ("exact", "x")):
        screen.press(key)
        off = screen.differ(mapped)
        differences[name] = {
            "most": int(off.max()),
            "of 999 in 1000 pixels": float(np.quantile(off, 0.999)),
            "share above 2": float((off > 2).mean()),
        }
    return differences


def time_tiles(slide: Path) -> float:
    """Return the median milliseconds for the server to send a tile, requested one after the other."""
    grid = Shelf().open(slide).grid(0)
    places = [divmod(place, grid.columns) for place in range(len(grid))][:MOST_TILES]
    taken = []
    with open_session([slide], Settings()) as session, serving(make_app("view.html", list_routes(session))) as url:
        assert session.slides[0].finding  # noqa: S101 - the fit shall not run at the same time
        place = urlsplit(url)
        connection = http.client.HTTPConnection(place.netloc)
        for row, column in places:
            start = time.perf_counter()
            connection.request("GET", f"{place.path}api/slides/0/tiles/0/{column}/{row}")
            connection.getresponse().read()
            taken.append(1000 * (time.perf_counter() - start))
        connection.close()
    return median(taken)


def measure_wheel() -> float | None:
    """Return the size of the package's wheel, or None if this is not a checkout from which it can be built."""
    root = Path(__file__).parents[3]
    if not (root / "pyproject.toml").exists():
        return None
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        if subprocess.run(command, cwd=root, capture_output=True, check=False).returncode:  # noqa: S603 - our own words
            return None
        return sum(file.stat().st_size for file in Path(folder).glob("*.whl")) / 1e6
