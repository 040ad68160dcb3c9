"""Phase 1, what both sides know: its settings, and the form of an upload.

There are two kinds of upload. `generators`, the paper's: a client trains a BottleGAN of its own between its images and
the reference set, and the server distills all of these to one. `code`: all have the same frozen prior, a client fits
only its code to it, and the global model is the prior with all codes. No pixel leaves a client either way.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from bottlegan.core.config import document
from bottlegan.core.errors import ConfigError, InputError
from bottlegan.imaging.files import Pixels
from bottlegan.models.document import ModelDocument
from bottlegan.models.paradigms import BottleGAN, build_model
from bottlegan.training.distill import DistillConfig, as_bottlegan
from bottlegan.training.gan import TrainConfig

Upload = Literal["generators", "code"]

CODE = "code"
"""The tensor of an upload that holds the client's style code."""
STYLE = "client"
"""What a client calls its only style until the server gives it the client's name."""


@document
class Phase1Config:
    """How the clients' styles become one model."""

    upload: Upload = "code"
    code_noise: float = 0.0
    """Standard deviation of noise that labs add to each number of their code, which are maps of densities."""
    # The map that onboarding finds is in the model before step 0, and the warm start has nothing left to learn.
    train: TrainConfig = TrainConfig(steps=10, warm_steps=10, check_every=10)
    """What a client trains, if it uploads generators."""
    distill: DistillConfig = DistillConfig()
    """What the server makes of these."""

    def __post_init__(self) -> None:
        """Check that there are generators to upload, and noise only where it can be added."""
        if self.code_noise < 0 or (self.code_noise and self.upload != "code"):
            raise ConfigError('phase1.code_noise must be at least 0, and needs phase1.upload = "code"')
        if self.train.model.paradigm != "many-one-many":
            raise ConfigError("a client trains a BottleGAN; set `train.model.paradigm` to many-one-many")


def expected_shapes(config: Phase1Config, prior: ModelDocument) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of all tensors of a valid upload, which are float32 and finite."""
    if config.upload == "code":
        return {CODE: (prior.model.code_size,)}
    return {name: tuple(tensor.shape) for name, tensor in to_arrays(_new_teacher(config)).items()}


def to_arrays(model: BottleGAN) -> dict[str, Tensor]:
    """Return both generators and the only code of a client's model; what it knows of the reference set is public."""
    parts = {"normalizer": model.normalizer, "restainer": model.restainer}
    generators = {
        f"{part}.{name}": tensor.detach().cpu().clone()
        for part, generator in parts.items()
        for name, tensor in generator.state_dict().items()
    }
    return {**generators, CODE: model.codes.table.detach().cpu()[0].clone()}


def from_arrays(arrays: Mapping[str, Tensor], config: Phase1Config) -> BottleGAN:
    """Return the model that a client has uploaded, given tensors of the expected names and shapes."""
    model = _new_teacher(config)
    for part, generator in (("normalizer", model.normalizer), ("restainer", model.restainer)):
        generator.load_state_dict({name: arrays[f"{part}.{name}"] for name in generator.state_dict()})
    with torch.no_grad():
        model.codes.table.copy_(arrays[CODE][None])
    return model.eval()


def need_reference(reference_set: Sequence[Pixels] | None) -> Sequence[Pixels]:
    """Return the public reference set, which must be there if generators are uploaded."""
    if not reference_set:
        raise InputError("generators cannot be trained without a reference set; give its folder, or upload codes")
    return reference_set


def _new_teacher(config: Phase1Config) -> BottleGAN:
    """Return a client's model, to be filled."""
    return as_bottlegan(build_model(config.train.model, [STYLE], torch.Generator()))
