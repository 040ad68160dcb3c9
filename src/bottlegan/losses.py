"""Losses as pure functions, each with its equation. They take images in [0, 1] or scores and return a scalar."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from bottlegan.core.task import IGNORED

Adversarial = Literal["wasserstein", "lsgan", "hinge", "linear"]
Classes = Literal["cross-entropy", "focal", "dice-ce"]


def critic_loss(form: Adversarial, real: Tensor, fake: Tensor) -> Tensor:
    """Return what a critic minimizes, given its scores of real and of generated images.

    wasserstein: mean D(fake) - mean D(real), with a gradient penalty; linear (the paper's): the same with
    sigmoid(D), which needs no penalty; lsgan: mean (D(real) - 1)^2 + mean D(fake)^2; hinge: mean max(0, 1 - D(real)) +
    mean max(0, 1 + D(fake)).
    """
    match form:
        case "wasserstein":
            return fake.mean() - real.mean()
        case "linear":
            return fake.sigmoid().mean() - real.sigmoid().mean()
        case "lsgan":
            return (real - 1).square().mean() + fake.square().mean()
        case "hinge":
            return F.relu(1 - real).mean() + F.relu(1 + fake).mean()


def deception_loss(form: Adversarial, fake: Tensor) -> Tensor:
    """Return what a generator minimizes, given a critic's scores of its images.

    wasserstein and hinge: -mean D(fake); linear: -mean sigmoid(D(fake)); lsgan: mean (D(fake) - 1)^2.
    """
    match form:
        case "lsgan":
            return (fake - 1).square().mean()
        case "linear":
            return -fake.sigmoid().mean()
        case _:
            return -fake.mean()


def gradient_penalty(critic: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
    """Return mean (|grad D(m)| - 1)^2 at m = mix real + (1 - mix) fake, with `mix` (N, 1, 1, 1) in [0, 1]."""
    between = (mix * real + (1 - mix) * fake).detach().requires_grad_(True)
    (gradient,) = torch.autograd.grad(critic(between).mean(dim=(1, 2, 3)).sum(), between, create_graph=True)
    return (gradient.flatten(1).norm(dim=1) - 1).square().mean()


def cycle_loss(there_and_back: Tensor, start: Tensor) -> Tensor:
    """Return the mean of |G_s(G_{s^-1}(x)) - x|_1, or of the reverse cycle."""
    return (there_and_back - start).abs().mean()


def identity_loss(mapped: Tensor, start: Tensor) -> Tensor:
    """Return the mean of |G_{s^-1}(c) - c|_1, for images that are already in the target stain."""
    return (mapped - start).abs().mean()


def profile_distance(profiles: Tensor, references: Tensor, matches: Tensor) -> Tensor:
    """Return the sliced Wasserstein distance (N,) between color distributions and their matches.

    A profile (D, L) holds L quantiles of an image's colors along D directions. On a line, the optimal transport plan
    pairs equal quantiles, so the distance is mean |q - r| over directions, quantiles and matches.

    Args:
        profiles: (N, D, L).
        references: (M, D, L).
        matches: (N, K) rows of `references`.
    """
    return (profiles[:, None] - references[matches]).abs().mean(dim=(1, 2, 3))


def class_loss(form: Classes, logits: Tensor, truth: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the loss of logits (N, K, ...) of K classes against the true classes (N, ...), without IGNORED ones.

    cross-entropy: mean -ln p(true class); focal: mean -(1 - p)^2 ln p, pixel by pixel; dice-ce: the cross-entropy plus
    1 - 2 sum(p t) / (sum p + sum t) over the batch, averaged over all classes except the first. For patches, which have
    no pixels, dice-ce is the cross-entropy alone. `weight` multiplies each pixel's loss; the mean is still over all
    pixels that are not ignored.
    """
    counts = truth != IGNORED
    surprise = F.cross_entropy(logits, truth, reduction="none", ignore_index=IGNORED)
    if form == "focal":
        surprise = (1 - torch.exp(-surprise)).square() * surprise
    loss = (surprise if weight is None else surprise * weight).sum() / counts.sum().clamp(min=1)
    if form != "dice-ce" or truth.ndim == 1:
        return loss
    shares = torch.softmax(logits, dim=1)[:, 1:]
    wanted = torch.stack([(truth == k).to(shares) for k in range(1, logits.shape[1])], dim=1)
    share = (counts if weight is None else counts * weight)[:, None]
    over = (0, *range(2, logits.ndim))
    overlap, total = (shares * wanted * share).sum(over), (shares * share + wanted * share).sum(over)
    # Adding 1 keeps a class that is not in the batch from dividing by zero.
    return loss + (1 - (2 * overlap + 1) / (total + 1)).mean()
