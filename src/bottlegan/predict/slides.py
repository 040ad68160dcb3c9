"""Predicting whole slides: read, predicted and written tile by tile, in memory that does not grow with the slide.

A slide becomes maps, which are lossless pyramids, outlines as GeoJSON, and a table as CSV.
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
"""Number of tissue tiles for the statistics of layers, and their side in pixels."""
MOST_OUTLINED = 2**24
"""Most pixels of the map that outlines are drawn from. Of larger maps, every second, fourth, ... pixel is used."""
MILLION = 1e6


@dataclass(frozen=True)
class SlideChoice:
    """Which level of slides to read, and what to write."""

    level: int | None = None
    """Level to read without scaling, whatever its resolution."""
    probabilities: bool = False
    """Whether to write a map of the probability of each class except the first."""
    threads: int | None = None
    tile: Size = TILE

    def list_files(self, target: Path, predictor: Predictor) -> list[Path]:
        """Return the maps to write: of classes, and of probabilities."""
        return [target, *(name_maps(target, predictor.task.classes[1:]) if self.probabilities else [])]


@dataclass(frozen=True)
class SlidePrediction:
    """The result for a slide."""

    files: list[Path]
    megapixels: float
    """Size at the resolution at which it was read."""
    seconds: float
    counts: Mapping[str, int]
    """Number of pixels, or patches, of each class."""
    note: Mapping[str, Json]
    """Note about the map of its colors."""
    broken: list[Broken] = field(default_factory=list)
    """Parts that could not be read, and were treated as glass."""


def predict_slide(
    predictor: Predictor,
    source: Path,
    target: Path,
    *,
    make_map: MakeMap | None = None,
    choice: SlideChoice | None = None,
    progress: Progress | None = None,
) -> SlidePrediction:
    """Write the classes of all pixels of the slide `source` to the pyramid `target`, with outlines and areas beside it.

    Args:
        predictor: A predictor for segmentation.
        source: A slide, or a large image.
        target: Ends in .tiff. Outlines and areas get the same name with another ending.
        make_map: Finds the map of the slide's colors; by default it is the predictor's.
        choice: What to read and write.
        progress: Receives progress.
    """
    choice, start = choice or SlideChoice(), time.perf_counter()
    with open_view(predictor, source, target, choice.level) as view:
        fitted, note = fit_to(predictor, view.slide, make_map)
        tissue = sample_tissue(view.slide, SAMPLES, SAMPLE, downsample=view.downsample)
        files, local = choice.list_files(target, predictor), fitted.make_local(tissue)
        painter = Painter(view, local, choice.tile, len(files))
        map_note: dict[str, Json] = {"map": dict(note), "overlap": local.reach}
        with (
            writing_maps(files, view.size, choice.tile, view.mpp, predictor=predictor, note=map_note) as maps,
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
    """Predicts tiles, in any thread and order, and counts classes."""

    def __init__(self, view: View, local: LocalPredictor, tile: Size, maps: int) -> None:
        """Lay a grid over a slide, for `maps` maps."""
        self.view, self.local, self.grid, self.maps = view, local, Grid(view.whole, tile), maps
        self.factor = 1
        while view.size.width * view.size.height > MOST_OUTLINED * self.factor**2:
            self.factor *= 2
        self.small = np.zeros((-(-view.size.height // self.factor), -(-view.size.width // self.factor)), np.uint8)
        """The classes at every `stride`-th pixel."""
        self.counts = np.zeros(local.whole.task.count, np.int64)
        self.broken: list[Broken] = []
        self._lock = Lock()

    def paint(self, places: range) -> list[Pixels]:
        """Return tiles (H, W, maps) by their indices in the grid."""
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
    """Return the probabilities (K, H, W) of a region, in pixels of the network, and its unreadable parts."""
    reach = local.reach
    shown = region.shift(-reach, -reach, region.width + 2 * reach, region.height + 2 * reach).overlap(view.whole)
    levels, broken = view.read(shown)
    return local.predict(levels)[(slice(None), *region.within(shown))], broken


@contextmanager
def open_view(predictor: Predictor, source: Path, target: Path, level: int | None) -> Iterator[View]:
    """Open a slide at a network's resolution, after checking that its maps can be written."""
    check_target(target, "tiff")
    check_apart([target], [source])
    with open_slide(source) as slide:
        yield look_at(slide, predictor.task.micrometers, level)


def fit_to(predictor: Predictor, slide: Slide, make_map: MakeMap | None) -> tuple[Predictor, Mapping[str, Json]]:
    """Return the predictor with the map of a slide's colors, and the note about that map."""
    if not predictor.normalizes:
        return predictor, {}
    if make_map is None:
        return (predictor if predictor.normalizer is not None else predictor.fit(slide)), {}
    color_map = make_map(slide)
    return predictor.using(color_map.convert), color_map.note


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch from starting its own threads, because tiles are already predicted in parallel."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
