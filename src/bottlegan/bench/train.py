"""The quality and speed of training: our default and the paper's preset in one run, on the same patches and clock.

Our default trains on both halves of the styles, each with the reference patches of the other. The paper's preset trains
for a given time on the first half; its best error, and when it had it, are what our default is timed against. Its 36
crops of 114 px a step do not fit into 24 GB, so here it gets 8 of 64 px, and a ten times higher rate for so few steps.
"""

import time
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.imaging.tensors import to_batch
from bottlegan.metrics.image import mean_squared_error, ssim
from bottlegan.models.paradigms import StyleModel
from bottlegan.reproduce.paired import Half
from bottlegan.training.gan import PRESETS, TrainConfig, advance, prepare, start

PAPER = replace(PRESETS["paper"], crops=8, crop=64, rate=1e-3, critic_rate=1e-3, check_every=20)
THINNED = 8  # during training, only every eighth style is scored


@dataclass
class Trace:
    """The scores of a training run over time."""

    seconds: list[float] = field(default_factory=list)
    mse: list[float] = field(default_factory=list)
    """Mean normalization MSE at those times."""


def bench_train(halves: tuple[Half, Half], paper_seconds: float, progress: Progress | None = None) -> dict[str, Json]:
    """Return the figures of both presets, and their ratio."""
    progress = progress or Silent()
    runs = [train_half(half, PRESETS["default"], np.inf, progress) for half in halves]
    scores = torch.cat([score(model, half) for (model, _), half in zip(runs, halves, strict=True)])
    normalized, restained, similar = scores.numpy().T
    _, paper = train_half(halves[0], PAPER, paper_seconds, progress)
    best = int(np.argmin(paper.mse))
    ours = runs[0][1]
    reached = [t for t, error in zip(ours.seconds, ours.mse, strict=True) if error <= paper.mse[best]]
    return {
        "styles": len(scores),
        "normalization MSE": _summary(normalized),
        "restaining MSE": _summary(restained),
        "normalization SSIM, mean": float(similar.mean()),
        "generator parameters": runs[0][0].generator_parameters(),
        "training seconds, all styles": sum(trace.seconds[-1] for _, trace in runs),
        "paper preset": {"best MSE": paper.mse[best], "after seconds": paper.seconds[best]},
        "seconds to the paper preset's best": reached[0] if reached else None,
        "ratio to the paper preset": reached[0] / paper.seconds[best] if reached else None,
        "traces": [asdict(trace) for trace in (*(trace for _, trace in runs), paper)],
    }


def train_half(half: Half, config: TrainConfig, seconds: float, progress: Progress) -> tuple[StyleModel, Trace]:
    """Train for all steps of `config`, or for `seconds`. Measuring does not count as time."""
    trace, spent, resumed = Trace(), 0.0, time.perf_counter()
    labs = {name: [levels] for name, levels in zip(half.names, half.styled, strict=True)}
    setting = prepare(labs, half.pool, config, 0, device=torch.device("cpu"), progress=progress)
    run = start(half.names, setting)
    # Also before the first step: the linear layers of a warm start already hold the closed-form maps.
    for step in progress.track(range(config.steps + 1), "training", config.steps + 1):
        if step:
            advance(run, setting, step - 1)
        if step % config.check_every and step < config.steps:
            continue
        spent += time.perf_counter() - resumed
        trace.seconds.append(spent)
        trace.mse.append(score(run.model, half, THINNED)[:, 0].mean().item())
        if spent > seconds:
            break
        resumed = time.perf_counter()
    return run.model.eval(), trace


@torch.no_grad()
def score(model: StyleModel, half: Half, every: int = 1) -> Tensor:
    """Return normalization MSE, restaining MSE and normalization SSIM (N, 3) of every `every`-th style."""
    rows = []
    for name, styled, truth in list(zip(half.names, half.styled, half.truths, strict=True))[::every]:
        x, c, code = to_batch(styled), to_batch(truth), model.codes[name]
        normalized = model.normalize(x, code)
        errors = mean_squared_error(normalized, c), mean_squared_error(model.restain(c, code), x)
        rows.append(torch.cat([*errors, ssim(normalized, c)]))
    return torch.stack(rows)


def _summary(errors: np.ndarray) -> dict[str, Json]:
    return {
        "mean": float(errors.mean()),
        "median": float(np.median(errors)),
        "90th percentile": float(np.quantile(errors, 0.9)),
    }
