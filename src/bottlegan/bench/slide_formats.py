"""The speed of reading other slide formats: JPEG with halved chroma, directly and by OpenSlide, and JPEG 2000.

python -m bottlegan.bench.slide_formats [--size 4096]
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from bottlegan.imaging.files import Pixels
from bottlegan.simulation.lab_folder import draw_lab
from bottlegan.simulation.slide import write_slide
from bottlegan.slides.grid import Grid, Region, Size
from bottlegan.slides.reader import OpenedSlide, open_slide

TILE, OFTEN = 256, 3
APERIO = "Aperio Image Library\r\n{0}x{0} (256x256) J2K|AppMag = 20|MPP = 0.5"


def measure(read: Callable[[Region], Pixels], regions: list[Region], threads: int) -> tuple[float, list[Pixels]]:
    """Return the megapixels per second of the fastest of several runs, and the pixels that were read."""
    best, read_last = float("inf"), list[Pixels]()
    for _ in range(OFTEN):
        started = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            read_last = list(pool.map(read, regions))
        best = min(best, time.perf_counter() - started)
    return sum(tile.shape[0] * tile.shape[1] for tile in read_last) / 1e6 / best, read_last


def write(path: Path, levels: Pixels, **form: Any) -> None:
    """Write a slide of two levels."""
    with tifffile.TiffWriter(path) as file:
        for level, image in enumerate((levels, np.ascontiguousarray(levels[::2, ::2]))):
            file.write(image, tile=(TILE, TILE), metadata=None, subfiletype=level, **form)


def compare(path: Path, name: str) -> None:
    """Print the speed of reading a slide, directly and by OpenSlide, in one thread and in all."""
    cores = os.cpu_count() or 1
    with open_slide(path) as slide:
        assert isinstance(slide, OpenedSlide)  # noqa: S101 - it was written as one
        regions = list(Grid(Region(0, 0, 0, *slide.levels[0]), Size(TILE, TILE)))
        one, _ = measure(slide.read, regions, 1)
        ours, read = measure(slide.read, regions, cores)
        through, truth = measure(slide._read_through, regions, cores)
        apart = max(int(np.abs(np.subtract(a, b, dtype=np.int16)).max()) for a, b in zip(read, truth, strict=True))
        how = f"{ours / through:.1f} times OpenSlide, {apart} levels apart" if slide.direct else "by OpenSlide"
        print(f"{name}: {one:.0f} MP/s in one thread, {ours:.0f} in {cores}, {how}")


def main() -> None:
    """Draw tissue, write it in each format, and read the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096)
    size = parser.parse_args().size
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.tiff"
        write_slide(source, size, 3, draw_lab(3))
        levels = tifffile.imread(source, key=0)
        for name, chroma in (("JPEG 4:4:4", (1, 1)), ("JPEG 4:2:2", (2, 1)), ("JPEG 4:2:0", (2, 2))):
            path = Path(folder) / f"{chroma[0]}{chroma[1]}.tiff"
            write(
                path, levels, compression="jpeg", compressionargs={"level": 80}, photometric="ycbcr", subsampling=chroma
            )
            compare(path, name)
        path = Path(folder) / "2000.svs"
        about = APERIO.format(size)
        with tifffile.TiffWriter(path) as file:
            form: dict[str, Any] = {"compression": 33005, "compressionargs": {"level": 60}, "photometric": "rgb"}
            file.write(levels, tile=(TILE, TILE), metadata=None, description=about, **form)
        compare(path, "JPEG 2000")


if __name__ == "__main__":
    main()
