"""The exactness of the exact table: all 256^3 colors, looked up, against those that the network itself computes.

The table is filled as usual, from lists of colors. The network maps float images, one for each level of red.
"""

import os
import time

import numpy as np

from bottlegan.bench.normalize import clock, draw_images
from bottlegan.colormap.keys import COLORS
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.freeze import Direction
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.reproduce.table2_files import find_commit

SIZE = 512
"""Side of the image that a style is fitted to."""
SIDE = 256


def bench_table(progress: Progress | None = None) -> dict[str, Json]:
    """Return the seconds of filling and of the network, and the number of different colors, in both directions."""
    progress = progress or Silent()
    normalizer = Normalizer.fit(draw_images(SIZE, progress)[0])
    directions: tuple[Direction, ...] = ("normalize", "restain")
    return {
        "colors": COLORS,
        "load average": os.getloadavg()[0],
        "commit": find_commit(),
        "rows": {direction: compare(normalizer, direction, progress) for direction in directions},
    }


def compare(normalizer: Normalizer, direction: Direction, progress: Progress) -> dict[str, Json]:
    """Return the figures of one direction."""
    table = normalizer.color_map(direction)
    filling = clock(lambda: table.fill(progress))
    run = normalizer if direction == "normalize" else normalizer.restain
    differing, largest, network, looking = 0, 0, 0.0, 0.0
    for red in progress.track(range(SIDE), f"{direction}: the network", SIDE):
        plane = make_plane(red)
        started = time.perf_counter()
        truth = from_batch(run(to_batch(plane)))[0]
        network += time.perf_counter() - started
        started = time.perf_counter()
        looked_up = table(plane)
        looking += time.perf_counter() - started
        off = np.abs(truth.astype(int) - looked_up).max(axis=2)
        differing, largest = differing + int((off > 0).sum()), max(largest, int(off.max()))
    return {
        "differing": differing,
        "largest difference": largest,
        "seconds to fill": filling,
        "seconds of the network": network,
        "seconds to look up": looking,
        "ratio of the network to looking up": network / looking,
    }


def make_plane(red: int) -> Pixels:
    """Return the image (256, 256, 3) of all colors with one level of red."""
    green, blue = np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij")
    return np.stack([np.full_like(green, red), green, blue], axis=2).astype(np.uint8)
