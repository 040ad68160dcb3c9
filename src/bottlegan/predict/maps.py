"""Maps of a slide as lossless pyramids: of its classes and, if requested, of their probabilities."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bottlegan import __version__
from bottlegan.core.progress import Json
from bottlegan.imaging.files import Pixels
from bottlegan.predict.outlines import list_colors
from bottlegan.predict.predictor import Predictor
from bottlegan.slides.grid import Size
from bottlegan.slides.writer import Form, PyramidWriter, writing_pyramid


class Maps:
    """Several pyramids of one size, written together: a tile (H, W, C) has a channel for each."""

    def __init__(self, writers: Sequence[PyramidWriter]) -> None:
        """Take the writers of the pyramids."""
        self.writers, self.grids = writers, writers[0].grids

    def encode(self, levels: Pixels) -> list[bytes]:
        """Return each channel in the form in which its writer stores it."""
        return [writer.encode(levels[..., k : k + 1]) for k, writer in enumerate(self.writers)]

    def halve(self, levels: Pixels) -> Pixels:
        """Return a tile at half the size."""
        halves = [writer.halve(levels[..., k : k + 1]) for k, writer in enumerate(self.writers)]
        return np.concatenate(halves, axis=2)

    def add(self, level: int, index: int, data: Any) -> None:
        """Write a tile to all pyramids."""
        for writer, part in zip(self.writers, data, strict=True):
            writer.add(level, index, part)


@contextmanager
def writing_maps(
    files: Sequence[Path],
    size: Size,
    tile: Size,
    mpp: tuple[float, float] | None,
    *,
    predictor: Predictor,
    note: Mapping[str, Json],
) -> Iterator[Maps]:
    """Yield a writer of the map of classes and, in further files, of probabilities. All files appear, or none."""
    names = predictor.task.classes
    colors = tuple((int(r), int(g), int(b)) for r, g, b in list_colors(len(names)))
    shared_note: dict[str, Json] = {
        "software": f"bottlegan {__version__}",
        "network sha256": predictor.document.weights,
        "classes": list(names),
        **note,
    }
    with ExitStack() as stack:
        writers = []
        for k, file in enumerate(files):
            shows = f"probability of {names[k]}, 0 to 255" if k else "ids of classes"
            form = Form(size, tile, mpp, pixels="gray" if k else "classes", palette=colors)
            writers.append(stack.enter_context(writing_pyramid(file, form, {**shared_note, "shows": shows})))
        yield Maps(writers)


def stack_maps(shares: NDArray[np.float32], classes: NDArray[np.uint8], count: int) -> Pixels:
    """Return a tile (H, W, count) of maps: classes (H, W), then shares (K, H, W) of all classes except the first."""
    grays = (255 * shares[1:count] + 0.5).astype(np.uint8)
    return np.ascontiguousarray(np.concatenate([classes[None], grays]).transpose(1, 2, 0))
