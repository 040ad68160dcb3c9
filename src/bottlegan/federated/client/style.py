"""Phase 1, a lab's side: the upload of its style."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bottlegan.core.config import to_json
from bottlegan.core.progress import Progress
from bottlegan.federated.protocol.phase1 import CODE, STYLE, Phase1Config, need_reference, to_arrays
from bottlegan.imaging.files import Pixels
from bottlegan.models.weights import ModelWeights
from bottlegan.onboarding.fit import onboard
from bottlegan.training.checkpoint import name_checkpoint
from bottlegan.training.distill import as_bottlegan
from bottlegan.training.gan import train


@dataclass(frozen=True)
class Contribution:
    """What a client uploads, with the verdict on its images."""

    arrays: dict[str, Tensor]
    verdict: str
    """One of `onboarding.verdict.Verdict`: whether the images look like stained tissue."""


def contribute(
    images: Sequence[Pixels],
    config: Phase1Config,
    *,
    reference_set: Sequence[Pixels] | None,
    prior: ModelWeights,
    seed: int,
    kept: Path | None = None,
    progress: Progress | None = None,
) -> Contribution:
    """Return what a client uploads; the same arguments give the same bytes.

    Args:
        images: The client's uint8 images (H, W, 3), unlabeled.
        config: What to upload.
        reference_set: The public images, uint8; only needed to train generators.
        prior: The network that codes are fitted to.
        seed: Seed of all random choices.
        kept: Folder for checkpoints, from which interrupted or finished training is resumed.
        progress: Where to report progress.
    """
    # The verdict is about the images, so it holds for generators, too.
    fitted = onboard(images, prior)
    verdict = fitted.diagnosis.verdict.value
    if config.method == "code":
        return Contribution({CODE: torch.from_numpy(fitted.code.copy())}, verdict)
    public = need_reference(reference_set)
    checkpoint = name_checkpoint(kept, to_json(config), seed, images, public)
    trained = train({STYLE: images}, public, config.lab, seed, progress=progress, checkpoint=checkpoint)
    return Contribution(to_arrays(as_bottlegan(trained)), verdict)
