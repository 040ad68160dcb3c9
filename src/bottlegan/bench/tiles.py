"""The speed of mapping tissue tiles, ours and the peers in one process, and the exactness of ours.

Peers see one tile after the other, as they would in a slide, and may use all cores for each. Ours looks tiles up in a
table that knows their colors, several at a time.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

from bottlegan.bench.normalize import BASE, PEERS, MapPixels, Peer, clock
from bottlegan.colormap.table import Convert
from bottlegan.core.progress import Json, Progress
from bottlegan.core.seeding import torch_stream
from bottlegan.data.lab import sample_slide
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.document import PRIOR
from bottlegan.models.paradigms import drawing_from
from bottlegan.models.pixel import PixelGenerator
from bottlegan.normalize.choice import MapChoice
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.normalize.slides.one import SlideOptions, lay_grid
from bottlegan.slides.reader import open_slide
from bottlegan.slides.tissue import sample_tissue
from bottlegan.training.gan import PRESETS

TILES, SIZE = 32, 256
OFTEN = 20
"""Number of times to run ours, because one run is too short for the clock."""
OURS = "ours, table ready"


def bench_tiles(slide: Path, progress: Progress) -> dict[str, Json]:
    """Return the megapixels per second of all rows, their ratios to torchstain's, and the differences found."""
    choice = MapChoice(PRIOR, force=True)
    with open_slide(slide) as opened:
        tiles, chosen = sample_tissue(opened, TILES, SIZE), choice.prepare()(opened)
    seconds: dict[str, float] = {OURS: time_ours(chosen.convert, tiles)}
    notes: dict[str, Json] = {}
    for name, peer in progress.track({**PEERS, **SHAPES}.items(), "peers on tiles", len(PEERS) + len(SHAPES)):
        try:
            seconds[name] = time_peer(peer(tiles[0]), tiles)
        except ImportError as error:
            notes[name] = {"note": str(error)}
        except Exception as error:  # whatever a peer fails with, the others are still measured
            notes[name] = {"note": f"failed: {type(error).__name__}: {error}"}
    megapixels = sum(tile.shape[0] * tile.shape[1] for tile in tiles) / 1e6
    base = seconds.get(BASE)
    rows: dict[str, Json] = {
        name: {
            "megapixels a second": megapixels / taken,
            f"ratio to {BASE}": None if base is None else base / taken,
        }
        for name, taken in seconds.items()
    }
    return {"tiles": len(tiles), "rows": {**rows, **notes}, **check_exact(slide)}


def time_ours(convert: Convert, tiles: list[Pixels]) -> float:
    """Return the seconds of looking up all tiles, in groups like those of a slide."""
    for tile in tiles:
        convert(tile)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return median(clock(lambda: list(pool.map(convert, tiles))) for _ in range(OFTEN))


def time_peer(normalize: MapPixels, tiles: list[Pixels]) -> float:
    """Return a peer's seconds for all tiles, after a first one in which it may compile."""
    normalize(tiles[0])
    return clock(lambda: [normalize(tile) for tile in tiles])


def check_exact(slide: Path) -> dict[str, Json]:
    """Return the differences, in levels, of the slide's tiles before JPEG from the truth. They should be 0.

    They are mapped by a table that learns as it goes, as in a slide, and compared with each tile alone, by a table that
    knew nothing before; and, mapped everywhere, with what the network of torch makes of their pixels: at most 1.
    """
    with open_slide(slide) as opened:
        grid = lay_grid(opened, SlideOptions())
        places = np.linspace(0, len(grid) - 1, min(TILES, len(grid))).astype(int).tolist()
        levels = [opened.read(grid[place]) for place in places]
        tissue = sample_slide(opened)
    as_in_slide, plain = (Normalizer.fit(tissue, force=True, everything=every) for every in (False, True))
    alone = [Normalizer(as_in_slide.model, as_in_slide.code)(tile) for tile in levels]
    network = [from_batch(plain(to_batch(tile)))[0] for tile in levels]
    return {
        "levels between a tile alone and in the slide": differ(alone, [as_in_slide(tile) for tile in levels]),
        "levels between a tile and its network": differ(network, [plain(tile) for tile in levels]),
    }


def differ(some: list[Pixels], others: list[Pixels]) -> int:
    """Return the largest difference between images, in levels."""
    return max(int(np.abs(one.astype(int) - other).max()) for one, other in zip(some, others, strict=True))


def peer_published(_: Pixels) -> MapPixels:
    """Return a generator of the published shape with random weights, on which its speed does not depend."""
    form = PRESETS["paper"].model
    with drawing_from(torch_stream(0, "published")):
        generator = PixelGenerator(form.generator, form.code_size).eval()
    code = torch.zeros(1, form.code_size)
    return peer_network(lambda images: generator(images, code))


def peer_stainnet(_: Pixels) -> MapPixels:
    """Return a network of StainNet's shape, three 1x1 convolutions of 32 channels, with random weights."""
    with drawing_from(torch_stream(0, "StainNet")):
        layers = [nn.Conv2d(3, 32, 1), nn.ReLU(), nn.Conv2d(32, 32, 1), nn.ReLU(), nn.Conv2d(32, 3, 1)]
    network = nn.Sequential(*layers).eval()
    return peer_network(lambda images: ((network(2 * images - 1) + 1) / 2).clamp(0, 1))


def peer_network(run: Callable[[Tensor], Tensor]) -> MapPixels:
    """Return a function that maps one tile by a network."""

    @torch.no_grad()
    def normalize(tile: Pixels) -> Pixels:
        return from_batch(run(to_batch(tile)))[0]

    return normalize


SHAPES: dict[str, Peer] = {"the published generator's shape": peer_published, "StainNet's shape": peer_stainnet}
