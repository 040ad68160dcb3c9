"""Pixels of thousands of simulated labs, each with its surroundings and its truth: what the encoder learns from."""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from bottlegan.core.progress import Progress, Silent
from bottlegan.core.seeding import numpy_stream
from bottlegan.models.pixel_sets import look_at_image, place_grid
from bottlegan.simulation.lab import PATCHES, SHOWN, SimulatedLab, draw_labs

KEPT = 1536
"""Pixels of each patch."""
BATCH = 100
"""Labs that are drawn at once, of the same tissues."""
PROCESSES = 2
"""Drawing takes as long as some minutes of training; what is drawn does not depend on how many do it."""


@dataclass(frozen=True)
class LabPixels:
    """Pixels of N labs: (N, PATCHES, KEPT, ...)."""

    density: NDArray[np.float16]
    """(..., VIEWS, 3): of the pixel, and of its surroundings."""
    roughness: NDArray[np.float16]
    truth: NDArray[np.uint8]
    """(..., 3): levels in the reference stain."""
    is_glass: NDArray[np.bool_]
    is_nuclear: NDArray[np.bool_]
    is_he: NDArray[np.bool_]
    """(N,) whether the lab shows H&E."""
    is_physical: NDArray[np.bool_]
    """(N,) whether the lab is a physical one."""

    def __len__(self) -> int:
        """Return the number of labs."""
        return len(self.is_he)


def draw_pixels(seed: int, labs: int, progress: Progress | None = None) -> LabPixels:
    """Draw so many labs, rounded up to whole batches; the same seed gives the same pixels."""
    batches = -(-labs // BATCH)
    workers = min(PROCESSES, os.cpu_count() or 1)
    with one_thread_each(), ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        drawn = pool.map(draw_batch, [seed] * batches, range(batches))
        parts = list((progress or Silent()).track(drawn, "drawing simulated labs", batches))
    return join_pixels(parts)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Let processes that are started meanwhile calculate in one thread: several in each would fight over the cores."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def draw_batch(seed: int, batch: int) -> LabPixels:
    """Draw the labs of one batch."""
    return join_pixels(list(_sample_labs(seed, batch)))


def join_pixels(parts: list[LabPixels]) -> LabPixels:
    """Return the pixels of all labs of several parts."""
    return LabPixels(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(LabPixels)))


def _sample_labs(seed: int, batch: int) -> Iterator[LabPixels]:
    for index, lab in enumerate(draw_labs(seed, batch, BATCH)):
        yield sample_lab(lab, numpy_stream(seed, "pixels", batch, index))


def sample_lab(lab: SimulatedLab, random: np.random.Generator) -> LabPixels:
    """Return random pixels of each patch of a lab."""
    most = 2 * KEPT
    rows, columns = place_grid(SHOWN, SHOWN, most)
    at = np.ix_(rows, columns)
    parts = []
    for image, truth, glass, nuclear in zip(lab.images, lab.truth, lab.glass, lab.nuclear, strict=True):
        density, roughness = look_at_image(image, most)
        chosen = random.choice(len(density), KEPT, replace=False)
        seen = (density, roughness, truth[at].reshape(-1, 3), glass[at].ravel(), nuclear[at].ravel())
        parts.append([each[chosen] for each in seen])
    density, roughness, truth, glass, nuclear = (np.stack(each)[None] for each in zip(*parts, strict=True))
    flags = (np.array([lab.is_he]), np.array([lab.is_physical]))
    assert density.shape[1] == PATCHES  # noqa: S101 - what training indexes by
    return LabPixels(density.astype(np.float16), roughness.astype(np.float16), truth, glass, nuclear, *flags)
