"""The quality of onboarding an unseen lab from one patch: ours and the peers in one run.

Each PESO patch is a lab of its own, whose style is fitted to that patch alone, unlabeled and unpaired. It is scored
against the same tissue in the reference stain, which no method sees: those that need reference images get those of the
other half of the patches. A method that fails leaves the patch as it is, and is counted.

What more patches of a lab are worth, PESO cannot tell, with one patch a style. So real tissue is rendered in simulated
styles, and one patch a lab compared with six, on other patches of the same lab.
"""

import copy
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bottlegan.bench.normalize import OTHERS, Peer
from bottlegan.core.errors import InputError
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.core.seeding import numpy_stream, torch_stream
from bottlegan.data.lab import spread
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.metrics.image import mean_squared_error, ssim
from bottlegan.metrics.structure import SWAPPED, nuclei_swapped
from bottlegan.models.document import PRIOR
from bottlegan.models.files import to_weights
from bottlegan.models.paradigms import BottleGAN
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.onboarding.fit import onboard
from bottlegan.onboarding.labs import describe_reference
from bottlegan.onboarding.verdict import Verdict
from bottlegan.reproduce.classical import METHODS, Prepare, attempt
from bottlegan.reproduce.paired import Half
from bottlegan.reproduce.table2_files import find_commit
from bottlegan.simulation.styles import render, unmix
from bottlegan.stain.style import REFERENCE
from bottlegan.training.prior import draw_known_style

SHIPPED = "ours, shipped prior"
SIMULATED_LABS = 24
MANY = 6
"""Patches per lab that are compared with a single one."""
FURTHER = 4
"""Number of patches of each simulated lab for scoring."""
SEED = 2024
"""Of the simulated labs: no style that the prior was trained on."""


@dataclass(frozen=True)
class Fitted:
    """The result of a method for one lab's patch."""

    normalized: Tensor | None
    """(1, 3, H, W), or None if the method fails."""
    seconds: float
    """Seconds to fit or, for a method that fits while it maps, to do both."""
    restain: Callable[[Pixels], Pixels] | None = None
    verdict: str | None = None
    size: int | None = None
    """Bytes that the lab must share."""


Fit = Callable[[Pixels], Fitted]
FitMethod = Callable[[Half], Fit]
"""Prepares a method for the labs of one half; raises `ImportError` if a package that it needs cannot be used."""


@dataclass(frozen=True)
class LabScore:
    """The scores of onboarding one lab."""

    mse: float
    unchanged: float
    """The MSE of doing nothing."""
    ssim: float
    turned: float
    """Share of pixel pairs with a clear order of darkness in the truth that are reversed."""
    restained: float | None
    """The MSE of restaining."""
    seconds: float
    failed: bool
    verdict: str | None
    size: int | None


def bench_onboard(
    halves: tuple[Half, Half], labs: int | None = None, progress: Progress | None = None
) -> dict[str, Json]:
    """Return the figures of all rows, and the benefit of six patches per lab.

    Args:
        halves: The labs.
        labs: Number of evenly spaced labs to use; None for all.
        progress: Receives progress.
    """
    if labs is not None and labs < len(halves):
        raise InputError(f"expected at least {len(halves)} labs, one from each half, got {labs}; give a larger number")
    progress = progress or Silent()
    model = BottleGAN.load(PRIOR)
    chosen = halves if labs is None else (thin(halves[0], labs - labs // 2), thin(halves[1], labs // 2))
    rows: dict[str, Json] = {}
    for name, method in list_methods(model).items():
        try:
            rows[name] = make_row(name, method, chosen, progress)
        except ImportError as error:
            rows[name] = {"note": str(error)}
    tissue = [levels for half in halves for levels in half.truths]
    count = SIMULATED_LABS if labs is None else min(SIMULATED_LABS, labs)
    return {
        "labs": sum(len(half.names) for half in chosen),
        "threads": torch.get_num_threads(),
        "load average": os.getloadavg()[0],
        "commit": find_commit(),
        "rows": rows,
        "more patches": bench_patches(model, tissue, count, progress),
    }


def list_methods(model: BottleGAN) -> dict[str, FitMethod]:
    """Return all rows by name."""
    methods: dict[str, FitMethod] = {SHIPPED: lambda half: fit_prior(model)}
    methods["shipped prior, real reference stain"] = lambda half: fit_prior(with_reference(model, half.pool))
    methods |= {name: fit_classical(prepare) for name, prepare in METHODS.items()}
    methods["nothing"] = lambda half: lambda levels: Fitted(to_batch(levels), 0.0, lambda other: other)
    return methods | {name: fit_peer(peer) for name, peer in OTHERS.items()}


def thin(half: Half, count: int) -> Half:
    """Return `count` evenly spaced labs, with the whole pool."""
    rows = spread(range(len(half.names)), count)
    return replace(
        half,
        names=tuple(half.names[row] for row in rows),
        styled=tuple(half.styled[row] for row in rows),
        truths=tuple(half.truths[row] for row in rows),
    )


def make_row(name: str, method: FitMethod, halves: Sequence[Half], progress: Progress) -> dict[str, Json]:
    """Fit a method to each lab, and summarize its scores."""
    scores: list[LabScore] = []
    for half in halves:
        fit = method(half)
        labs = list(zip(half.styled, half.truths, strict=True))
        for styled, truth in progress.track(labs, f"{name}, half {half.label}", len(labs)):
            scores.append(score_fit(fit(styled), styled, truth))
    return summarize(scores)


def score_fit(fitted: Fitted, styled: Pixels, truth: Pixels) -> LabScore:
    """Compare a method's result for a lab's patch with the truth."""
    image, target = to_batch(styled), to_batch(truth)
    output = image if fitted.normalized is None else fitted.normalized
    restained = fitted.restain and to_batch(fitted.restain(truth))
    return LabScore(
        mse=mean_squared_error(output, target).item(),
        unchanged=mean_squared_error(image, target).item(),
        ssim=ssim(output, target).item(),
        turned=nuclei_swapped(output, target).item(),
        restained=None if restained is None else mean_squared_error(restained, image).item(),
        seconds=fitted.seconds,
        failed=fitted.normalized is None,
        verdict=fitted.verdict,
        size=fitted.size,
    )


def summarize(scores: Sequence[LabScore]) -> dict[str, Json]:
    """Return a summary of all labs' scores. Figures that do not apply to a method are None."""
    mse = np.array([score.mse for score in scores])
    restained = [score.restained for score in scores if score.restained is not None]
    verdicts = Counter(score.verdict for score in scores if score.verdict is not None)
    return {
        "normalization MSE": {
            "mean": float(mse.mean()),
            "median": float(np.median(mse)),
            "90th percentile": float(np.quantile(mse, 0.9)),
            "worst": float(mse.max()),
        },
        "restaining MSE": {"mean": float(np.mean(restained)), "median": float(np.median(restained))}
        if restained
        else None,
        "SSIM, mean": float(np.mean([score.ssim for score in scores])),
        "fit seconds": {
            "mean": float(np.mean([score.seconds for score in scores])),
            "max": max(score.seconds for score in scores),
        },
        "failed": sum(score.failed for score in scores),
        "worse than nothing": sum(score.mse > score.unchanged for score in scores),
        "swapped": sum(score.turned > SWAPPED for score in scores),
        "verdicts": {verdict.value: verdicts[verdict.value] / len(scores) for verdict in Verdict} if verdicts else None,
        "bytes a lab shares": scores[0].size,
    }


def fit_prior(model: BottleGAN) -> Fit:
    """Return a function that fits a code to a patch with a frozen network. Refused patches stay unchanged."""
    weights = to_weights(model)

    def fit(styled: Pixels) -> Fitted:
        started = time.perf_counter()
        fitted = onboard([styled], weights)
        seconds = time.perf_counter() - started
        normalizer = Normalizer(weights, fitted.code, diagnosis=fitted.diagnosis)
        return Fitted(
            normalized=to_batch(normalizer(styled)),
            seconds=seconds,
            restain=normalizer.restain,
            verdict=fitted.diagnosis.verdict.value,
            size=fitted.code.nbytes,
        )

    return fit


def with_reference(model: BottleGAN, pool: Sequence[Pixels]) -> BottleGAN:
    """Return a model with the reference stain of other images, RGB levels (H, W, 3)."""
    changed = copy.deepcopy(model)
    changed.reference = describe_reference(pool)
    return changed


def fit_classical(prepare: Prepare) -> FitMethod:
    """Return a method that is prepared with the pool of a half, and fits each patch while mapping it."""

    def method(half: Half) -> Fit:
        try:
            normalize = prepare(half.pool_images())
        except InputError as error:
            raise ImportError(str(error)) from error  # only one that is not installed refuses a pool

        def fit(styled: Pixels) -> Fitted:
            image = to_batch(styled)[0]
            started = time.perf_counter()
            output = attempt(normalize, image)
            seconds = time.perf_counter() - started
            return Fitted(None if output is None else output[None], seconds)

        return fit

    return method


def fit_peer(peer: Peer) -> FitMethod:
    """Return a method of another package. It gets the same mosaic of the pool as torchstain."""

    def prepare(pool: Tensor) -> Callable[[Tensor], Tensor]:
        (mosaic,) = from_batch(torch.cat(list(pool[::8, :, ::2, ::2]), dim=2)[None])
        normalize = peer(mosaic)
        return lambda image: to_batch(normalize(from_batch(image[None])[0]))[0]

    return fit_classical(prepare)


def bench_patches(model: BottleGAN, tissue: Sequence[Pixels], labs: int, progress: Progress) -> dict[str, Json]:
    """Return how much better MANY patches determine a lab's style than one, on patches that no fit used."""
    most = min(MANY, len(tissue) - 1)
    weights = to_weights(model)
    errors: dict[int, list[float]] = {1: [], most: []}
    for lab in progress.track(range(labs), f"one patch a lab, and {most}", labs):
        styled, truths = draw_lab(tissue, most + FURTHER, lab)
        for count, results in errors.items():
            fitted = onboard(styled[:count], weights)
            normalizer = Normalizer(weights, fitted.code, diagnosis=fitted.diagnosis)
            pairs = list(zip(styled, truths, strict=True))[most:]
            patch_errors = [
                mean_squared_error(to_batch(normalizer(image)), to_batch(truth)).item() for image, truth in pairs
            ]
            results.append(float(np.mean(patch_errors)))
    one, many = (float(np.median(results)) for results in errors.values())
    return {
        "labs": labs,
        "patches": most,
        "MSE of one patch, median": one,
        "MSE of several patches, median": many,
        "ratio": one / many,
        "labs that are better": sum(b < a for a, b in zip(errors[1], errors[most], strict=True)),
    }


def draw_lab(tissue: Sequence[Pixels], count: int, lab: int) -> tuple[list[Pixels], list[Pixels]]:
    """Return patches of different tissue in a simulated style, and the same patches in the reference stain."""
    style = draw_known_style(SEED, "lab", lab)
    chosen = numpy_stream(SEED, "tissue", lab).permutation(len(tissue))[:count]
    noise = torch_stream(SEED, "noise", lab)
    content = [unmix(to_batch(tissue[row]), REFERENCE) for row in chosen]
    styled = [from_batch(render(concentration, style, noise))[0] for concentration in content]
    return styled, [from_batch(render(concentration, REFERENCE))[0] for concentration in content]
