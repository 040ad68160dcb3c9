"""The speed of normalizing images: ours and the peers in one process, on the same images, taking turns.

Two images of procedural tissue in one lab's style. Ours is fitted to the first, which it then maps, as well as the
second, some of whose colors it has never seen; other rows begin with no color known, or count the fit. The peers
estimate the stains of each image anew. All begin and end with RGB levels in memory, and each is called once before the
clock starts, because some compile themselves then.

torch-staintools and tiatoolbox are no extras of ours, because what they require replaces our torch. torch-staintools
runs beside it if installed with `pip install --no-deps torch-staintools "kornia<0.9" kornia_rs`, given a torchvision of
the same version and build as torch. tiatoolbox 2.1 demands an older torch and numpy, and some forty packages.
"""

import importlib
import importlib.util
import os
import time
from collections.abc import Callable
from statistics import median
from types import ModuleType
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.core.seeding import numpy_stream, torch_stream
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.document import PRIOR
from bottlegan.normalize.normalizer import Normalizer, open_model
from bottlegan.reproduce.table2_files import find_commit
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import SMALLEST, draw_tissue
from bottlegan.stain.style import LABS, REFERENCE, draw_style

Kind = Literal["Macenko", "Reinhard"]
MapPixels = Callable[[Pixels], Pixels]
Peer = Callable[[Pixels], MapPixels]
"""Fits another package's normalizer to one reference image; raises `ImportError` if the package cannot be used."""
Timing = Callable[[], dict[str, float]]
"""Measures the seconds of one or more rows."""

BASE = "torchstain Macenko"
"""The row to compare all others with."""
TISSUE = 512
"""Side of the tissue that fills larger images as tiles, because the time to draw grows faster than the area."""
TISSUES = 4
"""Different ones in an image; the scanner's noise differs in every pixel."""
STRIP = 256
"""Rows that the plain network maps at a time, to need only a few hundred megabytes."""


def bench_normalize(size: int = 2048, repeats: int = 5, progress: Progress | None = None) -> dict[str, Json]:
    """Return the megapixels per second of all rows, and their ratios to torchstain's Macenko."""
    if size < SMALLEST or repeats < 1:
        raise InputError(f"expected a size of at least {SMALLEST} px and one repeat, got {size} px and {repeats}")
    progress = progress or Silent()
    first, second, reference = draw_images(size, progress)
    runs: dict[str, Timing] = {"ours": time_ours(first, second)}
    notes: dict[str, str] = {}
    for name, peer in PEERS.items():
        try:
            runs[name] = time_peer(name, peer(reference), second)
        except ImportError as error:
            notes[name] = str(error)
    for name in progress.track(list(runs), "first calls", len(runs)):
        try:
            runs[name]()
        except Exception as error:  # whatever a peer fails with, the others are still measured
            if name == "ours":
                raise
            notes[name] = f"failed: {type(error).__name__}: {error}"
            del runs[name]
    seconds: dict[str, list[float]] = {}
    for turn in progress.track([run for _ in range(repeats) for run in runs.values()], "timing", repeats * len(runs)):
        for row, taken in turn().items():
            seconds.setdefault(row, []).append(taken)
    return {
        "size": size,
        "repeats": repeats,
        "threads": torch.get_num_threads(),
        "load average": os.getloadavg()[0],
        "commit": find_commit(),
        "colors": [count_colors(image) for image in (first, second)],
        "rows": {**summarize(seconds, size**2 / 1e6), **{name: {"note": note} for name, note in notes.items()}},
    }


def summarize(seconds: dict[str, list[float]], megapixels: float) -> dict[str, Json]:
    """Return each row's median speed, and its ratio to that of torchstain's Macenko, if that was measured."""
    base = median(seconds[BASE]) if BASE in seconds else None
    return {
        row: {
            "megapixels a second": megapixels / median(taken),
            f"ratio to {BASE}": None if base is None else base / median(taken),
            "seconds": list[Json](taken),
        }
        for row, taken in seconds.items()
    }


def draw_images(size: int, progress: Progress) -> tuple[Pixels, Pixels, Pixels]:
    """Return two images of one lab, and one of other tissue in the reference stain, tiled if they are large."""
    side = min(size, TISSUE)
    count = TISSUES if size > TISSUE else 1
    drawn = [
        draw_tissue(0, index, side).concentration
        for index in progress.track(range(3 * count), "drawing tissue", 3 * count)
    ]
    first, second, other = (tile(drawn[start : start + count], size) for start in range(0, 3 * count, count))
    style = draw_style(numpy_stream(0, "bench style"), "bench", LABS)
    random = torch_stream(0, "bench noise")
    styled = [from_batch(render(content[None], style, random))[0] for content in (first, second)]
    return styled[0], styled[1], from_batch(render(other[None, :, : 2 * side, : 2 * side], REFERENCE))[0]


def tile(tissues: list[Tensor], size: int) -> Tensor:
    """Return concentrations (2, size, size), tiled from smaller tissue (2, S, S)."""
    side = tissues[0].shape[-1]
    across = -(-size // side)
    rows = [torch.cat([tissues[(x + y) % len(tissues)] for x in range(across)], dim=2) for y in range(across)]
    return torch.cat(rows, dim=1)[:, :size, :size]


def count_colors(image: Pixels) -> int:
    """Return the number of different colors in an image, which a color table has to learn."""
    packed = image.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
    return len(np.unique(packed))


def time_ours(first: Pixels, second: Pixels) -> Timing:
    """Return a function that times our normalizer, newly fitted before each run."""
    network = open_model(PRIOR)

    def run() -> dict[str, float]:
        started = time.perf_counter()
        normalizer = Normalizer.fit(first, model=network)
        fitting = time.perf_counter() - started
        mapping = clock(lambda: normalizer(first))
        empty = Normalizer(normalizer.model, normalizer.code)
        return {
            "ours": mapping,
            "ours, another image of the lab": clock(lambda: normalizer(second)),
            "ours, no color known yet": clock(lambda: empty(second)),
            "ours, fitting included": fitting + mapping,
            "ours, the network without a table": clock(lambda: map_plainly(normalizer, second)),
        }

    return run


def map_plainly(normalizer: Normalizer, image: Pixels) -> Pixels:
    """Return the image, mapped by the network pixel by pixel."""
    strips = [image[top : top + STRIP] for top in range(0, len(image), STRIP)]
    return np.concatenate([from_batch(normalizer(to_batch(strip)))[0] for strip in strips])


def time_peer(name: str, normalize: MapPixels, image: Pixels) -> Timing:
    """Return a function that times another package's normalizer."""
    return lambda: {name: clock(lambda: normalize(image))}


def clock(work: Callable[[], object]) -> float:
    """Return the seconds of some work."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def peer_torchstain(kind: Kind, **options: bool) -> Peer:
    """Return torchstain's normalizer, called with these options."""

    def fit(reference: Pixels) -> MapPixels:
        normalizer = getattr(find_package("torchstain").normalizers, f"{kind}Normalizer")(backend="torch")
        normalizer.fit(torch.from_numpy(reference).permute(2, 0, 1))

        def normalize(image: Pixels) -> Pixels:
            output = normalizer.normalize(torch.from_numpy(image).permute(2, 0, 1), **options)
            levels: Tensor = output[0] if isinstance(output, tuple) else output
            return levels.to(torch.uint8).numpy()

        return normalize

    return fit


def peer_staintools(kind: Kind) -> Peer:
    """Return the normalizer of torch-staintools with its defaults."""

    def fit(reference: Pixels) -> MapPixels:
        normalizer = find_package("torch_staintools.normalizer").NormalizerBuilder.build(kind.lower())
        masks = find_package("torch_staintools.functional.tissue_mask")
        normalizer.fit(to_batch(reference))

        def normalize(image: Pixels) -> Pixels:
            try:
                return from_batch(normalizer(to_batch(image)))[0]
            except masks.TissueMaskException as error:
                raise ValueError(
                    str(error)
                ) from error  # so that it is reported like the failures of others, not as a bug

        return normalize

    return fit


def peer_tiatoolbox(kind: Kind) -> Peer:
    """Return the normalizer of tiatoolbox."""

    def fit(reference: Pixels) -> MapPixels:
        normalizer = getattr(find_package("tiatoolbox.tools.stainnorm"), f"{kind}Normalizer")()
        normalizer.fit(reference)
        return lambda image: np.asarray(normalizer.transform(image), np.uint8)

    return fit


def find_package(name: str) -> ModuleType:
    """Return a module of another package, or raise an `ImportError` that says why it is missing."""
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise ImportError("not installed")
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ImportError(f"cannot be imported: {type(error).__name__}: {error}") from error


OTHERS: dict[str, Peer] = {
    "torch-staintools Macenko": peer_staintools("Macenko"),
    "torch-staintools Reinhard": peer_staintools("Reinhard"),
    "tiatoolbox Macenko": peer_tiatoolbox("Macenko"),
    "tiatoolbox Reinhard": peer_tiatoolbox("Reinhard"),
}
PEERS: dict[str, Peer] = {
    # By default it also makes an image of each stain alone, which the others do not.
    BASE: peer_torchstain("Macenko", stains=False),
    "torchstain Macenko, with an image of each stain": peer_torchstain("Macenko"),
    "torchstain Reinhard": peer_torchstain("Reinhard"),
    **OTHERS,
}
