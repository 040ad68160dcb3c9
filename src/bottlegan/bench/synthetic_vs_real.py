"""The similarity of procedural tissue to real tissue: a picture, and distances between concentrations.

Run `python -m bottlegan.bench.synthetic_vs_real --data DIR [--out DIR] [--count N]`. DIR holds the PESO patches; the
script writes `synthetic_vs_real.png` (real and synthetic rows in turn, at full size) and `synthetic_vs_real.json`, and
prints the latter. Without the patches it ends with status 2.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bottlegan.core.errors import InputError
from bottlegan.core.files import make_folder, write_text
from bottlegan.data.peso import open_peso_patches
from bottlegan.imaging.files import Pixels, write_image
from bottlegan.imaging.tensors import from_batch
from bottlegan.simulation.styles import render, unmix
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import REFERENCE

BIN = 0.05
TOP = 1.5
Array = NDArray[np.float32]


def main() -> int:
    """Compare, write and print; return the exit status."""
    parser = argparse.ArgumentParser(description="Compare procedural with real tissue.")
    parser.add_argument("--data", type=Path, required=True, help="folder of PESO patches")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder to write to")
    parser.add_argument("--count", type=int, default=60, help="number of synthetic patches")
    parser.add_argument("--seed", type=int, default=0, help="root seed of the synthetic patches")
    args = parser.parse_args()
    try:
        patches = open_peso_patches(args.data)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2

    start = time.perf_counter()
    tissues = [draw_tissue(args.seed, index) for index in range(args.count)]
    milliseconds = 1000 * (time.perf_counter() - start) / args.count
    synthetic = torch.stack([tissue.concentration for tissue in tissues])
    images = patches.read_images("reference", patches.ids)

    make_folder(args.out)
    write_image(args.out / "synthetic_vs_real.png", paint(images, render(synthetic, REFERENCE)))
    report = compare(thin(unmix(images, REFERENCE)), thin(synthetic))
    report["epithelium share, quartiles"] = {
        "real": quartiles([patches.read_mask(patch).mean() for patch in patches.ids]),
        "synthetic": quartiles([float(tissue.epithelium.float().mean()) for tissue in tissues]),
    }
    report["milliseconds a patch"] = round(milliseconds, 1)
    text = json.dumps(report, indent=2)
    write_text(args.out / "synthetic_vs_real.json", text + "\n")
    print(text)
    return 0


def thin(concentration: torch.Tensor) -> list[Array]:
    """Return every ninth pixel of (N, 2, H, W) concentrations, (P, 2) per patch: neighbors add little."""
    return [patch.flatten(1).T.numpy() for patch in concentration[:, :, ::3, ::3]]


def compare(real: list[Array], synthetic: list[Array]) -> dict[str, object]:
    """Return the distances between pooled concentrations, and between two random halves of the real ones."""
    order = np.random.default_rng(0).permutation(len(real))
    halves = [np.concatenate([real[index] for index in half]) for half in np.array_split(order, 2)]
    pairs = {
        "synthetic vs real": (np.concatenate(synthetic), np.concatenate(real)),
        "real vs real (floor)": (halves[0], halves[1]),
    }
    return {
        name: {
            "wasserstein hematoxylin": round(wasserstein(first[:, 0], second[:, 0]), 4),
            "wasserstein eosin": round(wasserstein(first[:, 1], second[:, 1]), 4),
            "joint total variation": round(total_variation(first, second), 4),
        }
        for name, (first, second) in pairs.items()
    }


def wasserstein(first: Array, second: Array) -> float:
    """Return the 1-D Wasserstein distance: the mean distance between equal quantiles."""
    quantile = (np.arange(1000) + 0.5) / 1000
    return float(np.abs(np.quantile(first, quantile) - np.quantile(second, quantile)).mean())


def total_variation(first: Array, second: Array) -> float:
    """Return the total variation, in [0, 1], between the joint histograms of (N, 2) concentrations."""
    edges = np.arange(0, TOP + BIN, BIN)

    def share(some: Array) -> NDArray[np.float64]:
        hematoxylin, eosin = np.clip(some, 0, TOP - BIN / 2).T
        return np.histogram2d(hematoxylin, eosin, bins=[edges, edges])[0] / len(some)

    return float(np.abs(share(first) - share(second)).sum() / 2)


def quartiles(values: list[float]) -> list[float]:
    """Return minimum, quartiles and maximum."""
    return np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).round(3).tolist()


def paint(real: torch.Tensor, synthetic: torch.Tensor, columns: int = 4, pairs: int = 4) -> Pixels:
    """Return `pairs` rows of real patches, each above a row of synthetic ones, spread over both sets."""
    rows = []
    for pair in range(pairs):
        for images in (real, synthetic):
            spread = np.linspace(0, len(images) - 1, pairs * columns).astype(int)[pair::pairs]
            rows.append(np.concatenate(from_batch(images[spread]), axis=1))
    return np.concatenate(rows)


if __name__ == "__main__":
    sys.exit(main())
