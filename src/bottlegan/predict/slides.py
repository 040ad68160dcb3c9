"""Whole slides: read, predicted and written tile by tile, in memory that does not grow with the slide.

A slide becomes maps, pyramids without loss beside which everything else is small: outlines as GeoJSON, a table as CSV.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray

from bottlegan.core.files import check_apart
from bottlegan.core.progress import Json, Progress
from bottlegan.imaging.files import Pixels
from bottlegan.normalize.choice import MakeMap
from bottlegan.predict.maps import stack_maps, writing_maps
from bottlegan.predict.outlines import count_pixels, write_outlines
from bottlegan.predict.predictor import LocalPredictor, Predictor
from bottlegan.predict.tables import name_maps, write_areas
from bottlegan.predict.view import View, look_at
from bottlegan.slides.grid import Grid, Region, Size
from bottlegan.slides.reader import Broken, Slide, open_slide
from bottlegan.slides.stream import stream_pyramid
from bottlegan.slides.tissue import sample_tissue
from bottlegan.slides.writer import check_target

TILE = Size(1024, 1024)
SAMPLES, SAMPLE = 16, 256
"""Tiles of tissue that the statistics of layers are taken from, and their side."""
MOST_OUTLINED = 2**24
"""Pixels of the map that outlines are drawn from: finer ones are taken at every second, fourth, ... pixel."""
MILLION = 1e6


@dataclass(frozen=True)
class SlideChoice:
    """What to read of slides, and what to write."""

    level: int | None = None
    """Which level to read as it is, whatever its resolution."""
    probabilities: bool = False
    """Whether to write a map of each class's probability but the first's."""
    threads: int | None = None
    tile: Size = TILE

    def list_files(self, target: Path, predictor: Predictor) -> list[Path]:
        """Return the maps to write: that of classes, and those of probabilities."""
        return [target, *(name_maps(target, predictor.task.classes[1:]) if self.probabilities else [])]


@dataclass(frozen=True)
class SlidePrediction:
    """What became of a slide."""

    files: list[Path]
    megapixels: float
    """At the resolution that it was read at."""
    seconds: float
    counts: Mapping[str, int]
    """Pixels of each class, or patches."""
    note: Mapping[str, Json]
    """What is known of the map of its colors."""
    broken: list[Broken] = field(default_factory=list)
    """What could not be read, and was taken for glass."""


def predict_slide(
    predictor: Predictor,
    source: Path,
    target: Path,
    *,
    make_map: MakeMap | None = None,
    choice: SlideChoice | None = None,
    progress: Progress | None = None,
) -> SlidePrediction:
    """Write the classes of all pixels of the slide `source` to the pyramid `target`, and beside it what follows.

    Args:
        predictor: Of segmentation.
        source: A slide, or a large image.
        target: Ends in .tiff; outlines and areas get its name with another ending.
        make_map: Finds the map of the slide's colors; by default it is the predictor's.
        choice: What to read and to write.
        progress: Where to report.
    """
    choice, start = choice or SlideChoice(), time.perf_counter()
    with open_view(predictor, source, target, choice.level) as view:
        fitted, note = fit_to(predictor, view.slide, make_map)
        tissue = sample_tissue(view.slide, SAMPLES, SAMPLE, downsample=view.downsample)
        files, local = choice.list_files(target, predictor), fitted.make_local(tissue)
        painter = Painter(view, local, choice.tile, len(files))
        said: dict[str, Json] = {"map": dict(note), "overlap": local.reach}
        with (
            writing_maps(files, view.size, choice.tile, view.mpp, predictor=predictor, note=said) as maps,
            one_thread(),
        ):
            stream_pyramid(painter.paint, maps, choice.threads, progress, source.name)
    painter.broken.sort(key=lambda part: (part.region.y, part.region.x))  # threads report in any order
    outlines, table, names = target.with_suffix(".geojson"), target.with_suffix(".csv"), predictor.task.classes
    write_outlines(outlines, painter.small, names, view.downsample * painter.factor)
    counts = dict(zip(names, painter.counts.tolist(), strict=True))
    write_areas(table, {source.name: counts}, view.mpp)
    megapixels, seconds = view.size.width * view.size.height / MILLION, time.perf_counter() - start
    return SlidePrediction([*files, outlines, table], megapixels, seconds, counts, note, painter.broken)


class Painter:
    """Predicts tiles, in any thread and order, and counts what it sees."""

    def __init__(self, view: View, local: LocalPredictor, tile: Size, maps: int) -> None:
        """Lay a grid over a slide, for so many maps."""
        self.view, self.local, self.grid, self.maps = view, local, Grid(view.whole, tile), maps
        self.factor = 1
        while view.size.width * view.size.height > MOST_OUTLINED * self.factor**2:
            self.factor *= 2
        self.small = np.zeros((-(-view.size.height // self.factor), -(-view.size.width // self.factor)), np.uint8)
        """The classes at every so-manieth pixel."""
        self.counts = np.zeros(local.whole.task.count, np.int64)
        self.broken: list[Broken] = []
        self._lock = Lock()

    def paint(self, places: range) -> list[Pixels]:
        """Return tiles (H, W, maps) by their places in the grid."""
        return [self._paint(self.grid[place]) for place in places]

    def _paint(self, tile: Region) -> Pixels:
        shares, broken = predict_region(self.view, self.local, tile)
        classes = shares.argmax(axis=0).astype(np.uint8)
        with self._lock:
            self.counts += count_pixels(classes, len(self.counts))
            self.broken += broken
        reduced = classes[:: self.factor, :: self.factor]
        top, left = tile.y // self.factor, tile.x // self.factor
        self.small[top : top + reduced.shape[0], left : left + reduced.shape[1]] = reduced
        return stack_maps(shares, classes, self.maps)


def predict_region(view: View, local: LocalPredictor, region: Region) -> tuple[NDArray[np.float32], list[Broken]]:
    """Return the probabilities (K, H, W) of a region, in pixels of the network, and what of it could not be read."""
    reach = local.reach
    shown = region.shift(-reach, -reach, region.width + 2 * reach, region.height + 2 * reach).overlap(view.whole)
    levels, broken = view.read(shown)
    return local.predict(levels)[(slice(None), *region.within(shown))], broken


@contextmanager
def open_view(predictor: Predictor, source: Path, target: Path, level: int | None) -> Iterator[View]:
    """Open a slide at a network's resolution, once it is known that its maps can be written."""
    check_target(target, "tiff")
    check_apart([target], [source])
    with open_slide(source) as slide:
        yield look_at(slide, predictor.task.micrometers, level)


def fit_to(predictor: Predictor, slide: Slide, make_map: MakeMap | None) -> tuple[Predictor, Mapping[str, Json]]:
    """Return the predictor with the map of a slide's colors, and what is known of that."""
    if not predictor.normalizes:
        return predictor, {}
    if make_map is None:
        return (predictor if predictor.normalizer is not None else predictor.fit(slide)), {}
    color_map = make_map(slide)
    return predictor.using(color_map.convert), color_map.note


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch from starting threads of its own: tiles are predicted side by side already."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
