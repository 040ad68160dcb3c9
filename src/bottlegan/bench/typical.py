"""What simulated labs are like: the constants of settling, and where the lines of verdicts are.

Run it whenever the prior is trained anew:

    python -m bottlegan.bench.typical [MODEL]

The labs are of a seed that no training and no other benchmark uses.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bottlegan.models.document import PRIOR
from bottlegan.models.encoder import sigmoid
from bottlegan.models.weights import read_weights
from bottlegan.onboarding.fit import LabLook, look_at_lab, measure_gain, measure_grain
from bottlegan.onboarding.settle import ENOUGH, USUAL_ERROR, average_classes, find_nuclei
from bottlegan.onboarding.verdict import GOOD_ERROR
from bottlegan.simulation.lab import draw_labs

SEED = 2026
BATCHES, BATCH = 10, 60
SHOWN = 3
"""Patches that a lab is known by."""

Doubles = NDArray[np.float64]


def main() -> None:
    """Print the constants."""
    encoders = read_weights(Path(sys.argv[1]) if len(sys.argv) > 1 else PRIOR).encoders
    labs = [lab for batch in range(BATCHES) for lab in draw_labs(SEED, batch, BATCH)]
    looks = [look_at_lab(lab.images[:SHOWN], encoders) for lab in labs]
    stained = [look for look, lab in zip(looks, labs, strict=True) if lab.is_he]
    others = [look for look, lab in zip(looks, labs, strict=True) if not lab.is_he]
    errors = np.array([look.expected_error for look in stained])
    means = np.stack([classes for look in stained if (classes := read_classes(look, encoders[0]["basis"])) is not None])
    np.set_printoptions(precision=3, suppress=True)
    print(f"{len(stained)} labs of H&E, {len(others)} of something else")
    print("expected errors, 10, 50, 75, 90, 99 %:", np.quantile(errors, [0.1, 0.5, 0.75, 0.9, 0.99]))
    print("share of labs below USUAL_ERROR:", (errors < USUAL_ERROR).mean())
    print(f"TYPICAL and VARIATION, of {len(means)} labs:", means.mean(0).tolist(), means.std(0).tolist(), sep="\n")
    print("share below GOOD_ERROR:", (errors < GOOD_ERROR).mean())
    print("gain, 99th percentile:", np.quantile([measure_gain(look.look.maps.normalize) for look in stained], 0.99))
    grain = [measure_grain(look.look.maps.normalize, look.sight.density[0]).max() for look in stained]
    print("grain, 99th percentile, for MOST_GRAIN:", np.quantile(grain, 0.99))
    for name, group in (("H&E", stained), ("something else", others)):
        chance = [float(sigmoid(look.look.is_he)[0]) for look in group] or [np.nan]
        print(f"probability of H&E, 1, 5, 50, 95, 99 % of {name}:", np.quantile(chance, [0.01, 0.05, 0.5, 0.95, 0.99]))


def read_classes(lab: LabLook, basis: NDArray[np.float32]) -> Doubles | None:
    """Return the mean amounts (2, 2) of nuclei and other tissue after normalization; None where there is too little."""
    amounts = (lab.look.maps.normalize(lab.tissue[None])[0] - lab.white) @ np.linalg.inv(basis)
    nuclear = find_nuclei(lab.look.nuclear[0].astype(np.float64))
    means, pixels = average_classes(amounts[:, :2].astype(np.float64), nuclear)
    return means if pixels.min() >= ENOUGH else None


if __name__ == "__main__":
    main()
