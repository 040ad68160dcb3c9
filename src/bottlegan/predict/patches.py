"""Classifying the patches of a slide: each patch of tissue gets a class and becomes one pixel of a map."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bottlegan.core.progress import Progress, Silent, Unit
from bottlegan.core.task import IGNORED
from bottlegan.normalize.choice import MakeMap
from bottlegan.predict.maps import stack_maps, writing_maps
from bottlegan.predict.outlines import count_pixels, write_outlines
from bottlegan.predict.predictor import Predictor
from bottlegan.predict.slides import MILLION, SlideChoice, SlidePrediction, fit_to, open_view
from bottlegan.predict.tables import write_scores
from bottlegan.predict.view import View
from bottlegan.slides.grid import Grid, Size
from bottlegan.slides.reader import Broken
from bottlegan.slides.stream import stream_pyramid
from bottlegan.slides.tissue import mask_tissue, read_overview

ENOUGH = 0.1
"""Least share of tissue for a patch to get a class."""
TILE = Size(256, 256)
BATCH = 16
"""Patches per call of the network: for a single small patch, a deep network spends most time on overhead."""


def predict_patches(
    predictor: Predictor,
    source: Path,
    target: Path,
    *,
    make_map: MakeMap | None = None,
    choice: SlideChoice | None = None,
    progress: Progress | None = None,
) -> SlidePrediction:
    """Write the classes of all tissue patches of the slide `source` to the pyramid `target`, one pixel each.

    Patches have the size of the crops that the network was trained on. The arguments are those of `predict_slide`.
    """
    choice, start, side = choice or SlideChoice(), time.perf_counter(), predictor.document.crop
    broken: list[Broken] = []
    with open_view(predictor, source, target, choice.level) as view:
        fitted, note = fit_to(predictor, view.slide, make_map)
        grid = Grid(view.whole, Size(side, side))
        chosen = find_patches(view, grid)
        shares = np.zeros((predictor.task.count, grid.rows, grid.columns), np.float32)
        batches = [chosen[start : start + BATCH] for start in range(0, len(chosen), BATCH)]
        unit = Unit(BATCH * side * side / MILLION, "MP")
        for places in (progress or Silent()).track(batches, source.name, len(batches), unit):
            read = [view.read(grid[place]) for place in places]
            shares.reshape(len(shares), -1)[:, places] = fitted.predict_patches([levels for levels, _ in read]).T
            broken += [part for _, lost in read for part in lost]
    classes = np.full((grid.rows, grid.columns), IGNORED, np.uint8)
    classes.flat[chosen] = shares.argmax(axis=0).flat[chosen]
    files, names = choice.list_files(target, predictor), predictor.task.classes
    mpp = None if view.mpp is None else (view.mpp[0] * side, view.mpp[1] * side)
    size = Size(grid.columns, grid.rows)
    with writing_maps(files, size, TILE, mpp, predictor=predictor, note={"map": dict(note)}) as maps:
        layers, whole = stack_maps(shares, classes, len(files)), maps.grids[0]
        stream_pyramid(lambda places: [layers[whole[at].within(whole.region)] for at in places], maps, 1)
    outlines, table = target.with_suffix(".geojson"), target.with_suffix(".csv")
    write_outlines(outlines, classes, names, view.downsample * side, smallest=1)
    write_patches(table, view, grid=grid, chosen=chosen, shares=shares, names=names)
    counts = dict(zip(names, count_pixels(classes, len(names)).tolist(), strict=True))
    megapixels, seconds = len(chosen) * side * side / MILLION, time.perf_counter() - start
    return SlidePrediction([*files, outlines, table], megapixels, seconds, counts, note, broken)


def find_patches(view: View, grid: Grid) -> list[int]:
    """Return the indices of the patches that show tissue, without patches that the slide's edge cuts."""
    overview, pixel, _ = read_overview(view.slide)
    tissue = mask_tissue(overview)
    side = grid.tile.width * view.downsample / pixel  # side of a patch in pixels of the overview
    chosen = []
    for place in range(len(grid)):
        row, column = divmod(place, grid.columns)
        seen = tissue[_span(row, side), _span(column, side)]
        whole = grid[place].width == grid[place].height == grid.tile.width
        if whole and seen.size and seen.mean() >= ENOUGH:
            chosen.append(place)
    return chosen


def write_patches(
    path: Path,
    view: View,
    *,
    grid: Grid,
    chosen: Sequence[int],
    shares: NDArray[np.float32],
    names: Sequence[str],
) -> None:
    """Write the position of each patch, in pixels of the slide's finest level, its class and the probabilities."""
    step, rows = view.downsample, []
    for place in chosen:
        patch = grid[place]
        where = [round(edge * step) for edge in (patch.x, patch.y, patch.width, patch.height)]
        rows.append((where, shares[(slice(None), *divmod(place, grid.columns))].tolist()))
    write_scores(path, names, rows, ("x", "y", "width", "height"))


def _span(index: int, side: float) -> slice:
    start = int(index * side)
    return slice(start, max(start + 1, int((index + 1) * side)))
