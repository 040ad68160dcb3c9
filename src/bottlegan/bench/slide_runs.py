"""The separate processes of `bench_slide`. Each imports only what it needs.

The last line that a run prints is its measurement, as JSON.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

TILE = 256


def measure(command: Sequence[str]) -> dict[str, object]:
    """Run a command, and return its status, its seconds from start to end, its peak memory, and its last line.

    This process is small, because Linux includes the memory of a process before it becomes the command.
    """
    with tempfile.TemporaryFile("w+") as output:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)  # noqa: S603 - a command of ours
        # Only this way of waiting returns the resources of a process.
        _, status, usage = os.wait4(process.pid, 0)
        seconds, process.returncode = time.perf_counter() - started, os.waitstatus_to_exitcode(status)
        output.seek(0)
        lines = [line for line in output.read().splitlines() if line.strip()]
    megabytes = 1024 * usage.ru_maxrss / 1e6
    last = lines[-1] if lines else ""
    return {"status": process.returncode, "seconds": seconds, "memory": megabytes, "last": last}


def copy_slide(source: str, target: str, quality: int) -> dict[str, float]:
    """Copy a slide with libvips, as a pyramid of JPEG tiles."""
    import pyvips  # noqa: PLC0415 - optional, and only here

    started = time.perf_counter()
    image = pyvips.Image.new_from_file(source, access="sequential")
    image.tiffsave(
        target,
        compression="jpeg",
        Q=quality,
        tile=True,
        tile_width=TILE,
        tile_height=TILE,
        pyramid=True,
        bigtiff=True,
    )
    return {"copy": time.perf_counter() - started}


def map_twice(source: Path, target: Path, quality: int) -> dict[str, float]:
    """Normalize a slide with a style fitted to it, first with an empty table of colors, then with a full one."""
    clock = [time.perf_counter()]
    from bottlegan.data.lab import sample_slide  # noqa: PLC0415 - timed
    from bottlegan.normalize.choice import ChosenMap  # noqa: PLC0415 - timed
    from bottlegan.normalize.normalizer import Normalizer  # noqa: PLC0415 - timed
    from bottlegan.normalize.slides.one import SlideOptions, map_slide  # noqa: PLC0415 - timed
    from bottlegan.slides.reader import open_slide  # noqa: PLC0415 - timed

    clock.append(time.perf_counter())
    with open_slide(source) as slide:
        normalizer = Normalizer.fit(sample_slide(slide), force=True)
    clock.append(time.perf_counter())
    import bottlegan.colormap.kernel  # noqa: PLC0415 - timed
    import bottlegan.slides.halving  # noqa: F401, PLC0415 - timed

    clock.append(time.perf_counter())
    for _ in range(2):
        map_slide(source, target, lambda _: ChosenMap(normalizer, {}), SlideOptions(quality=quality))
        clock.append(time.perf_counter())
    steps = ("import", "fit", "compile", "from cold", "table ready")
    return dict(zip(steps, (after - before for before, after in pairwise(clock)), strict=True))


def main() -> None:
    """Run the function that the first argument names."""
    kind, *rest = sys.argv[1:]
    figures: object
    if kind == "measure":
        figures = measure(rest)
    elif kind == "copy":
        figures = copy_slide(rest[0], rest[1], int(rest[2]))
    else:
        figures = map_twice(Path(rest[0]), Path(rest[1]), int(rest[2]))
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
