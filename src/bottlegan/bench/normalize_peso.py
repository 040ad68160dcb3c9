"""The error of closed-form normalizers on 240 real patches in 240 unknown styles.

All methods run in one go on the same patches: nothing, torchstain's Macenko and Reinhard, and our robust Macenko. The
patches are cut in two halves; each half is normalized with the other half as reference set, so that no method ever
sees a patch in both stains. Where a method fails (an exception, or values that are not finite) the patch counts as left
as it was, and as a failure.

    python -m bottlegan.bench.normalize_peso --data DIR [--json FILE]
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from bottlegan.core.errors import InputError
from bottlegan.core.files import write_text
from bottlegan.data.peso import PesoPatches, open_peso_patches
from bottlegan.metrics.image import ssim
from bottlegan.reproduce.classical import METHODS, attempt, halves


@dataclass(frozen=True)
class Row:
    """The result of one method over all patches."""

    method: str
    mse_mean: float
    mse_median: float
    mse_p90: float
    ssim_mean: float
    failures: int
    worse_than_nothing: int
    seconds_a_patch: float


def measure(patches: PesoPatches) -> list[Row]:
    """Return one row per method."""
    pools, styled = (
        [patches.read_images(stain, tuple(half)) for half in halves(patches.ids)] for stain in ("reference", "styled")
    )
    rows = []
    nothing: np.ndarray | None = None
    for name, prepare in METHODS.items():
        errors, similarities, failures, seconds = [], [], 0, 0.0
        for images, truths, pool in ((styled[0], pools[0], pools[1]), (styled[1], pools[1], pools[0])):
            normalize = prepare(pool)
            for image, truth in zip(images, truths, strict=True):
                started = time.perf_counter()
                output = attempt(normalize, image)
                seconds += time.perf_counter() - started
                failures += output is None
                result = image if output is None else output
                errors.append((result - truth).square().mean().item())
                similarities.append(ssim(result[None], truth[None]).item())
        error = np.array(errors)
        nothing = error if nothing is None else nothing
        rows.append(
            Row(
                name,
                float(error.mean()),
                float(np.median(error)),
                float(np.quantile(error, 0.9)),
                float(np.mean(similarities)),
                failures,
                int((error > nothing).sum()),
                seconds / len(error),
            )
        )
        print(format_row(rows[-1]), flush=True)
    return rows


def format_row(row: Row) -> str:
    """Return the row as a line of a Markdown table."""
    mse = f"{row.mse_mean:.4f} | {row.mse_median:.4f} | {row.mse_p90:.4f}"
    rest = f"{row.ssim_mean:.3f} | {row.failures} | {row.worse_than_nothing} | {1000 * row.seconds_a_patch:.0f}"
    return f"| {row.method} | {mse} | {rest} |"


def main() -> None:
    """Print the table and, if requested, write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of PESO patches")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        patches = open_peso_patches(arguments.data)
        print("| method | MSE mean | median | 90th percentile | SSIM | failures | worse than nothing | ms a patch |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        rows = measure(patches)
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    if arguments.json:
        write_text(arguments.json, json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
