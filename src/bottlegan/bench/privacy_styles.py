"""What a style code reveals (the lab, and the composition of its tissue), and what noise on the code costs."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.core.seeding import numpy_stream
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.document import PRIOR
from bottlegan.models.weights import ModelWeights, read_weights
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.onboarding.fit import onboard
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABS, draw_style

NOISES = (0.0, 0.003, 0.01, 0.03)
HALVES = 2
PATCHES, SIZE = 2, 128
Codes = NDArray[np.float64]


def bench_styles(labs: int = 10, seed: int = 0, progress: Progress | None = None) -> dict[str, Json]:
    """Return, for each noise, how often a lab is recognized by a code of its other images, and the loss in normalizing.

    Every lab has its own style and tissue. Its images are cut in two halves, which are onboarded separately.
    """
    progress = progress or Silent()
    prior = read_weights(PRIOR)
    codes, shares, images = [], [], []
    for lab in progress.track(range(labs), "codes", labs):
        style = draw_style(numpy_stream(seed, "style", lab), f"lab {lab}", LABS)
        for half in range(HALVES):
            first = (HALVES * lab + half) * PATCHES
            tissues = [draw_tissue(seed, first + row, SIZE) for row in range(PATCHES)]
            patches = [from_batch(render(tissue.concentration[None], style))[0] for tissue in tissues]
            codes.append(onboard(patches, prior).code.astype(np.float64))
            shares.append(float(np.mean([tissue.epithelium.double().mean() for tissue in tissues])))
            images.append(patches[0])
    table = np.stack(codes)
    rows: dict[str, Json] = {}
    for noise in NOISES:
        blurred = table + noise * numpy_stream(seed, "noise", str(noise)).normal(size=table.shape)
        rows[f"{noise:g}"] = {
            "lab told": tell_lab(blurred, table),
            "epithelium, r": read_share(blurred, np.array(shares)),
            "levels": measure_levels(prior, images, table, blurred),
        }
    return {"labs": labs, "lab by chance": 1 / labs, "rows": rows}


def tell_lab(seen: Codes, references: Codes) -> float:
    """Return how often the nearest other code belongs to the same lab; a lab's halves are neighbors in the list."""
    spread = references.std(axis=0) + 1e-9
    distances = np.linalg.norm((seen[:, None] - references[None]) / spread, axis=2)
    np.fill_diagonal(distances, np.inf)
    labs = np.arange(len(seen)) // HALVES
    return float((labs[distances.argmin(axis=1)] == labs).mean())


def read_share(codes: Codes, shares: NDArray[np.float64]) -> float:
    """Return Pearson's r of the share of epithelium predicted from the codes of other labs."""
    labs = np.arange(len(codes)) // HALVES
    scaled = (codes - codes.mean(axis=0)) / (codes.std(axis=0) + 1e-9)
    read = np.empty(len(codes))
    for lab in set(labs.tolist()):
        others = scaled[labs != lab]
        gram = others.T @ others + 10.0 * np.eye(codes.shape[1])
        weights = np.linalg.solve(gram, others.T @ (shares[labs != lab] - shares[labs != lab].mean()))
        read[labs == lab] = scaled[labs == lab] @ weights
    return float(np.corrcoef(read, shares)[0, 1])


def measure_levels(prior: ModelWeights, images: Sequence[Pixels], codes: Codes, blurred: Codes) -> float:
    """Return the root mean square difference of normalized images due to the noise, in levels."""
    squares = []
    for image, code, other in zip(images, codes, blurred, strict=True):
        styles = prior.with_styles({"own": code.astype(np.float32), "blurred": other.astype(np.float32)})
        plain, noisy = (Normalizer.from_model(styles, name)(image).astype(np.float64) for name in ("own", "blurred"))
        squares.append(float(np.square(plain - noisy).mean()))
    return float(np.sqrt(np.mean(squares)))
