"""Predictions of a network for the tiles that the page requests, at the resolution that it was trained at."""

from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottlegan.core.errors import InputError
from bottlegan.core.progress import Json
from bottlegan.core.task import IGNORED
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.predict.local import ROUND
from bottlegan.predict.outlines import list_colors
from bottlegan.predict.patches import find_patches
from bottlegan.predict.predictor import Predictor
from bottlegan.predict.slides import SAMPLE, SAMPLES, predict_region
from bottlegan.predict.view import View, look_at
from bottlegan.slides.grid import Grid, Region, Size
from bottlegan.slides.tissue import sample_tissue
from bottlegan.viewer.pyramid import Pyramid

Classes = NDArray[np.uint8]
"""Class ids (H, W); IGNORED where there is none, such as on glass between patches."""
MOST_PIXELS = 2048**2
"""Most pixels of the network for one tile of the page. Coarser tiles would take too long."""
PREPARED = 4
"""Number of slides kept ready for prediction."""


class Ready(NamedTuple):
    """A slide at the network's resolution, and a function that returns the classes of a region."""

    view: View
    classify: Callable[[Region], Classes]


class SlideNetwork:
    """A network, kept ready for the slides requested last. It predicts one tile at a time."""

    def __init__(self, path: Path, allowed: Collection[str] = ()) -> None:
        """Read a network. `allowed` lists custom factories that may run."""
        self.predictor, self._lock = Predictor.load(path, allowed=allowed), Lock()
        self._ready = lru_cache(maxsize=PREPARED)(self._prepare)

    def tell(self) -> dict[str, Json]:
        """Return its classes and their colors."""
        names = self.predictor.task.classes
        return {"classes": list(names), "colors": list_colors(len(names))[: len(names)].tolist()}

    def paint(self, pyramid: Pyramid, step: int, column: int, row: int) -> Classes:
        """Return the classes of a tile's pixels; refuse a tile that covers too much of the slide."""
        tile = pyramid.locate(step, column, row)
        with self._lock:
            ready = self._ready(pyramid)
            factor = 2**step / ready.view.downsample  # pixels of the network for one of the tile
            if factor * factor * tile.width * tile.height > MOST_PIXELS:
                raise InputError("zoom in: the network would take too long for this much of the slide")
            rows = _spread(tile.y, tile.height, factor, ready.view.size.height)
            columns = _spread(tile.x, tile.width, factor, ready.view.size.width)
            region = _align(rows, columns).overlap(ready.view.whole)
            classes = ready.classify(region)
        return classes[np.ix_(rows - region.y, columns - region.x)]

    def _prepare(self, pyramid: Pyramid) -> Ready:
        slide, predictor = pyramid.slide, self.predictor
        # Images are not scaled, nor are slides for networks that do not state their resolution.
        unknown = slide.kind == "image" or predictor.task.micrometers is None
        view = look_at(slide, predictor.task.micrometers, 0 if unknown else None)
        if predictor.normalizes:
            normalizer = Normalizer.fit(slide, model=predictor.model)
            if normalizer.refused and normalizer.diagnosis is not None:
                raise InputError(f"refused: {normalizer.diagnosis.reason}")
            predictor = predictor.using(normalizer)
        if predictor.task.kind == "classification":
            return Ready(view, _Patches(predictor, view).classify)
        local = predictor.make_local(sample_tissue(slide, SAMPLES, SAMPLE, downsample=view.downsample))
        return Ready(view, lambda region: predict_region(view, local, region)[0].argmax(axis=0).astype(np.uint8))


class _Patches:
    """The classes of tissue patches, each predicted on first use."""

    def __init__(self, predictor: Predictor, view: View) -> None:
        self.predictor, self.view = predictor, view
        self.grid = Grid(view.whole, Size(predictor.document.crop, predictor.document.crop))
        self.tissue, self.known = set(find_patches(view, self.grid)), dict[int, int]()

    def classify(self, region: Region) -> Classes:
        output = np.full((region.height, region.width), IGNORED, np.uint8)
        for place in self.tissue.intersection(self.grid.touching(region)):
            if place not in self.known:
                levels, _ = self.view.read(self.grid[place])
                self.known[place] = int(self.predictor(levels).classes)
            output[self.grid[place].overlap(region).within(region)] = self.known[place]
        return output


def _spread(start: int, count: int, factor: float, most: int) -> NDArray[np.int64]:
    """Return the network's pixel at the middle of each of `count` pixels of a tile."""
    return ((start + np.arange(count) + 0.5) * factor).astype(np.int64).clip(0, most - 1)


def _align(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Region:
    """Return the region of these pixels, extended to the network's coarse grid, like tiles of slides."""
    left, top = int(columns[0]) // ROUND * ROUND, int(rows[0]) // ROUND * ROUND
    right, bottom = -(-(int(columns[-1]) + 1) // ROUND) * ROUND, -(-(int(rows[-1]) + 1) // ROUND) * ROUND
    return Region(0, left, top, right - left, bottom - top)
