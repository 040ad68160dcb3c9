"""The quality of bringing images of one physical lab to the style of another: ours and the peers in one run.

Two labs with dyes, lamp, sensor, tone curve, noise and JPEG of their own show different tissue, which methods are
fitted to. Further patches are shown by both labs, so that what a method makes of the first lab's can be compared with
the second's, pixel by pixel. The floor is an affine map of densities that is fitted to these very pairs.

Twice: with patches as they come, and with opposite composition, where one lab's are poor in nuclei and the other's are
rich, but the tissue that is scored is neither. A method that fails on an image leaves it as it is, and is counted.
It needs no data. Everything follows from one seed, which training never uses.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np
import torch
from torch import Tensor

from bottlegan.bench.normalize import MapPixels, Peer, find_package, peer_torchstain
from bottlegan.bench.real_methods import NOTHING, OURS, Fitted, apply, fit_moments
from bottlegan.core.errors import InputError
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.core.seeding import numpy_stream
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.metrics.image import mean_squared_error
from bottlegan.models.document import PRIOR
from bottlegan.models.paradigms import BottleGAN
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.reproduce.table2_files import find_commit
from bottlegan.simulation.organs import Patch, draw_patch
from bottlegan.simulation.physics import PhysicalLab, draw_physical_lab, expose, scan
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.affine import AffineMap
from bottlegan.stain.density import map_images, to_density, to_rgb
from bottlegan.stain.macenko import Reference, fit_density_map, sample_density, summarize_reference
from bottlegan.stain.style import REFERENCE

SEED = 2024
PAIRS = 200
POOL, SIDE = 96, 256
"""Number of patches in the pool that labs draw from, and their side in pixels."""
LEAST_TISSUE = 0.4
"""Least share of a patch that is not glass."""
FITTED, SCORED = 6, 4
"""Patches that each lab of a pair is known by, and further ones that both show."""
REFERENCES = 16
"""Number of patches for the statistics that the closed form needs."""
AS_THEY_COME, OPPOSITE = "as they come", "opposite composition"
FLOOR, LEAST = "paired affine map", "paired affine map, least error"
"""What all are compared with: least squares in closed form; and how much lower an affine map can get."""
STEPS = 4
"""Most steps of that descent."""


@dataclass(frozen=True)
class LabPair:
    """The images of two labs: RGB levels (SIDE, SIDE, 3)."""

    fitted_a: list[Pixels]
    fitted_b: list[Pixels]
    """Different tissue from that of the first lab."""
    scored_a: list[Pixels]
    scored_b: list[Pixels]
    """The same tissue as `scored_a`, in the second lab."""


FitPair = Callable[[LabPair], MapPixels]
"""Fits a method to two labs, and returns a map of the first lab's images to the second lab's style."""


@dataclass(frozen=True)
class Score:
    """The score of a method for one pair of labs."""

    mse: float
    failed: bool
    """Whether any image was left unchanged, because the method failed or refused it."""


def bench_physical(
    pairs: int = PAIRS, progress: Progress | None = None, methods: Mapping[str, FitPair | str] | None = None
) -> dict[str, Json]:
    """Return the figures of all methods, for random patches and for opposite composition.

    Args:
        pairs: Number of pairs of labs to draw.
        progress: Receives progress.
        methods: Rows by name, or why a row cannot be made, beside doing nothing and the paired affine map; by default
            ours, the closed form, and the peers.
    """
    if pairs < 1:
        raise InputError(f"expected at least one pair of labs, got {pairs}; give a larger number")
    progress = progress or Silent()
    pool = draw_pool(progress)
    rows = list_methods() if methods is None else methods
    usable = {name: fit for name, fit in rows.items() if not isinstance(fit, str)}
    notes: dict[str, Json] = {name: {"note": fit} for name, fit in rows.items() if isinstance(fit, str)}
    tests: dict[str, Json] = {}
    for test in (AS_THEY_COME, OPPOSITE):
        scores = score_methods(BASES | usable, pool, test, pairs, progress)
        tests[test] = {"rows": summarize(scores) | notes}
    return {
        "pairs": pairs,
        "threads": torch.get_num_threads(),
        "load average": os.getloadavg()[0],
        "commit": find_commit(),
        "tests": tests,
    }


def draw_pool(progress: Progress) -> list[Patch]:
    """Draw patches of any tissue, without those that are mostly glass."""
    patches = (draw_patch(SEED, index, SIDE) for index in count())
    enough = (patch for patch in patches if 1 - patch.glass.mean() >= LEAST_TISSUE)
    return [next(enough) for _ in progress.track(range(POOL), "drawing tissue", POOL)]


def draw_pair(pool: Sequence[Patch], index: int, test: str) -> LabPair:
    """Draw pair number `index`. Both tests have the same labs, but different tissue."""
    lab_a, lab_b = (draw_physical_lab(numpy_stream(SEED, "bench lab", index, which)) for which in "ab")
    nuclei = [patch.nuclei for patch in pool]
    fitted_a, fitted_b, scored = choose_tissue(numpy_stream(SEED, "bench tissue", index, test), nuclei, index, test)

    def show(lab: PhysicalLab, rows: Sequence[int], *name: str) -> list[Pixels]:
        amounts = np.stack([pool[row].amounts for row in rows])
        return scan(expose(amounts, lab), lab, numpy_stream(SEED, "bench scan", index, test, *name))

    return LabPair(
        show(lab_a, fitted_a, "a", "fitted"),
        show(lab_b, fitted_b, "b", "fitted"),
        show(lab_a, scored, "a", "scored"),
        show(lab_b, scored, "b", "scored"),
    )


def choose_tissue(
    random: np.random.Generator, nuclei: Sequence[float], index: int, test: str
) -> tuple[list[int], list[int], list[int]]:
    """Return the patches of the first lab, of the second, and of both; no patch appears in two of these.

    Args:
        random: Generator for the choice.
        nuclei: Share of each patch of the pool that nuclei cover.
        index: Number of the pair. With opposite composition, the first lab of every other pair is rich in nuclei.
        test: Random patches, or opposite composition.
    """
    order = np.argsort(nuclei, kind="stable")
    third = len(order) // 3
    of_a, of_b = order, order
    if test == OPPOSITE:
        of_a, of_b = (order[:third], order[-third:]) if index % 2 == 0 else (order[-third:], order[:third])
    a = random.permutation(of_a)[:FITTED]
    b = random.permutation(np.setdiff1d(of_b, a))[:FITTED]
    both = random.permutation(np.setdiff1d(order, [*a, *b]))[:SCORED]
    return a.tolist(), b.tolist(), both.tolist()


def score_methods(
    methods: Mapping[str, FitPair], pool: Sequence[Patch], test: str, pairs: int, progress: Progress
) -> dict[str, list[Score]]:
    """Return the scores of all methods on the same pairs of labs."""
    scores: dict[str, list[Score]] = {name: [] for name in methods}
    for index in progress.track(range(pairs), f"pairs of labs, {test}", pairs):
        pair = draw_pair(pool, index, test)
        for name, fit in methods.items():
            scores[name].append(score_pair(fit, pair))
    return scores


def score_pair(fit: FitPair, pair: LabPair) -> Score:
    """Fit a method to a pair of labs, and compare the first lab's mapped images with those of the second."""
    try:
        fitted = Fitted(fit(pair))
    except (RuntimeError, ValueError, IndexError):  # as of mapping; also our own `InputError`
        return Score(measure_error(pair.scored_a, pair.scored_b), failed=True)
    mapped = [apply(fitted, image) for image in pair.scored_a]
    error = measure_error([image for image, _ in mapped], pair.scored_b)
    return Score(error, failed=not all(worked for _, worked in mapped))


def measure_error(outputs: Sequence[Pixels], truths: Sequence[Pixels]) -> float:
    """Return the mean squared error of images, with levels scaled to [0, 1]."""
    output, truth = (torch.cat([to_batch(image) for image in images]) for images in (outputs, truths))
    return mean_squared_error(output, truth).mean().item()


def summarize(scores: Mapping[str, Sequence[Score]]) -> dict[str, Json]:
    """Return the figures of each method, compared with doing nothing and with the paired affine map."""
    errors = {name: np.array([score.mse for score in lab_scores]) for name, lab_scores in scores.items()}
    floor = describe(errors[FLOOR])
    rows: dict[str, Json] = {}
    for name, lab_scores in scores.items():
        mse = describe(errors[name])
        worse = np.flatnonzero(errors[name] > errors[NOTHING])
        rows[name] = {
            "MSE": dict[str, Json](mse),
            f"ratio to {FLOOR}": {
                key: mse[key] / floor[key] if floor[key] else None for key in ("mean", "90th percentile")
            },
            "worse than nothing": len(worse),
            "pairs worse than nothing": list[Json](worse.tolist()),
            "failed": sum(score.failed for score in lab_scores),
        }
    return rows


def describe(errors: np.ndarray) -> dict[str, float]:
    """Return a summary of errors (N,)."""
    return {
        "mean": float(errors.mean()),
        "median": float(np.median(errors)),
        "90th percentile": float(np.quantile(errors, 0.9)),
        "worst": float(errors.max()),
    }


def list_methods() -> dict[str, FitPair | str]:
    """Return all rows that need a fit, by name. For a peer that cannot be used, return the reason instead."""
    methods: dict[str, FitPair | str] = {
        OURS: fit_ours(BottleGAN.load(PRIOR)),
        "robust Macenko (ours)": fit_closed_form(draw_reference()),
        "Reinhard, pooled moments": lambda pair: fit_moments(np.hstack(pair.fitted_b))(pair.fitted_a).convert,
    }
    peers = {
        "torchstain Reinhard": peer_torchstain("Reinhard"),
        "torchstain Macenko": peer_torchstain("Macenko", stains=False),
    }
    try:
        find_package("torchstain")
    except ImportError as error:
        return methods | dict.fromkeys(peers, str(error))
    return methods | {name: fit_peer(peer) for name, peer in peers.items()}


def fit_ours(model: BottleGAN) -> FitPair:
    """Return a function that onboards both labs. A pair with a refused lab counts as failed."""

    def fit(pair: LabPair) -> MapPixels:
        a, b = (Normalizer.fit(images, model=model) for images in (pair.fitted_a, pair.fitted_b))
        if a.refused and a.diagnosis is not None:
            raise InputError(f"the lab is refused: {a.diagnosis.reason}")
        return a.like(b)

    return fit


def draw_reference() -> Reference:
    """Return the statistics of procedural tissue in the reference stain."""
    drawn = torch.stack([draw_tissue(0, index, SIDE).concentration for index in range(REFERENCES)])
    return summarize_reference([render(drawn, REFERENCE)])


def fit_closed_form(reference: Reference) -> FitPair:
    """Return a function that finds the stains of both labs in closed form, and maps through the reference stain."""

    def find(images: Sequence[Pixels]) -> AffineMap:
        # As many pixels of all images together as of one, because more make it slower and no better.
        pixels = [sample_density(to_batch(image))[:, :: len(images)] for image in images]
        closed_form = fit_density_map(torch.cat(pixels, dim=1), reference)
        return AffineMap(closed_form.matrix, closed_form.bias)

    return lambda pair: map_affinely(find(pair.fitted_a).then(find(pair.fitted_b).inverse()))


def fit_peer(peer: Peer) -> FitPair:
    """Return another package's normalizer, which fits while mapping. Its target is a mosaic of the second lab."""

    def fit(pair: LabPair) -> MapPixels:
        convert = peer(np.hstack(pair.fitted_b))
        return lambda image: convert(image.copy())  # torch wants to write

    return fit


def fit_paired(pair: LabPair, steps: int = 0) -> MapPixels:
    """Return the affine map of densities between the scored images, with nearly the smallest possible error.

    An intensity I = exp(-OD) changes by I times what its density does, so that is the weight of each pixel in

        min over A, b of sum over pixels and channels of I_B^2 (OD_A A + b - OD_B)^2.

    Args:
        pair: The pair whose scored patches it is fitted to.
        steps: Most Gauss-Newton steps on the error of the images itself, which has no closed form.
    """
    before, after = (gather_density(images) for images in (pair.scored_a, pair.scored_b))
    known = torch.cat([before, torch.ones_like(before[:, :1])], dim=1)
    channels = [descend(known, wanted, solve(known, wanted, torch.exp(-wanted)), steps) for wanted in after.unbind(1)]
    solved = torch.stack(channels, dim=1)
    return map_affinely(AffineMap(solved[None, :3], solved[None, 3]))


def solve(known: Tensor, wanted: Tensor, weight: Tensor) -> Tensor:
    """Return the numbers (4,) that minimize the squares of weight (known @ numbers - wanted); (P, 4), (P,), (P,)."""
    weighted = weight[:, None] * known
    return torch.linalg.pinv(weighted.T @ weighted, hermitian=True) @ (weighted.T @ (weight * wanted))


def descend(known: Tensor, wanted: Tensor, numbers: Tensor, steps: int) -> Tensor:
    """Return numbers (4,) with a lower error of the intensities of known @ numbers, stepping while the error falls."""
    truth = to_rgb(wanted)
    least = (to_rgb(known @ numbers) - truth).square().mean()
    for _ in range(steps):
        output = to_rgb(known @ numbers)
        inside = (output > 0) & (output < 1)  # clipped values do not change
        change = solve(known, (output - truth) / output.clamp(min=1e-3), torch.where(inside, output, 0.0))
        error = (to_rgb(known @ (numbers + change)) - truth).square().mean()
        if not error < least:
            break
        numbers, least = numbers + change, error
    return numbers


def gather_density(images: Sequence[Pixels]) -> Tensor:
    """Return the densities (P, 3) of all pixels of images, float64."""
    return torch.cat([to_density(to_batch(image).double()).flatten(2)[0].T for image in images])


def map_affinely(affine: AffineMap) -> MapPixels:
    """Return a function that maps images by one map of densities; refuse a map that is not finite."""
    if not all(bool(part.isfinite().all()) for part in affine):
        raise ValueError("the map is not finite")
    return lambda image: from_batch(map_images(affine, to_batch(image)))[0]


BASES: dict[str, FitPair] = {
    NOTHING: lambda pair: lambda image: image,
    FLOOR: fit_paired,
    LEAST: partial(fit_paired, steps=STEPS),
}
"""The rows that every method is compared with."""
