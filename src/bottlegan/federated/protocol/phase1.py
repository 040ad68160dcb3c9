"""Phase 1, what both sides know: its settings, and the form of an upload.

There are three methods. `code`: all have the same frozen prior, a lab fits only its code to it, and the global model is
the prior with all codes. `generators`: a lab has a BottleGAN of its own learn the map that onboarding finds, and the
server distills all of these to one by regression. `adversarial`, the paper's: a lab trains its BottleGAN against
critics, between its images and the reference set, and the server another on what all of them make of that set. No pixel
leaves a lab in any of them.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bottlegan.core.config import document
from bottlegan.core.errors import ConfigError, InputError
from bottlegan.imaging.files import Pixels
from bottlegan.models.code_maps import decode_maps
from bottlegan.models.document import ModelDocument
from bottlegan.models.paradigms import BottleGAN, build_model
from bottlegan.models.weights import ModelWeights
from bottlegan.training.adversarial import AdversarialConfig
from bottlegan.training.distill import DistillConfig, as_bottlegan
from bottlegan.training.gan import TrainConfig

Phase1Method = Literal["code", "generators", "adversarial"]

CODE = "code"
"""The tensor of an upload that holds the client's style code."""
STYLE = "client"
"""What a client calls its only style until the server gives it the client's name."""


MOST_CODE, MOST_SLOPE, MOST_SHIFT = 100.0, 15.0, 5.0
"""Of a style code, of its maps' matrices beyond identity, and of their shifts of density.

Three times what labs need that are drawn as for the prior's training: of 67, the largest are 34, 5.5 and 1.7."""
MOST_WEIGHT = 1000.0
"""Of any number in a generator."""


@document
class Phase1Config:
    """How the clients' styles become one model."""

    method: Phase1Method = "code"
    code_noise: float = 0.0
    """Standard deviation of the noise that labs add to each number of their code's map of densities."""
    # The map that onboarding finds is in the model before step 0, and the warm start has nothing left to learn.
    train: TrainConfig = TrainConfig(steps=10, warm_steps=10, check_every=10)
    """Method generators: training at a client."""
    distill: DistillConfig = DistillConfig()
    """Method generators: distillation at the server."""
    adversarial: AdversarialConfig = AdversarialConfig()
    """Method adversarial: training at clients and at the server."""

    def __post_init__(self) -> None:
        """Check that there are generators to upload, and noise only where it can be added."""
        if self.code_noise < 0 or (self.code_noise and self.method != "code"):
            raise ConfigError('phase1.code_noise must be at least 0, and needs phase1.method = "code"')
        if self.train.model.paradigm != "many-one-many":
            raise ConfigError("a client trains a BottleGAN; set `train.model.paradigm` to many-one-many")

    @property
    def lab(self) -> TrainConfig:
        """What a client trains, unless it uploads a code."""
        return self.adversarial.lab if self.method == "adversarial" else self.train

    @property
    def server(self) -> DistillConfig:
        """What the server makes of the clients' generators."""
        return self.adversarial.server if self.method == "adversarial" else self.distill


def expected_shapes(config: Phase1Config, prior: ModelDocument) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of all tensors of a valid upload, which are float32 and finite."""
    if config.method == "code":
        return {CODE: (prior.model.code_size,)}
    return {name: tuple(tensor.shape) for name, tensor in to_arrays(_new_teacher(config)).items()}


def find_odd_style(arrays: Mapping[str, Tensor], config: Phase1Config, prior: ModelWeights) -> str | None:
    """Return what is outside of the range that training knew, in an upload of the expected names and shapes."""
    if config.method != "code":
        largest = {name: float(tensor.abs().max()) for name, tensor in arrays.items() if tensor.numel()}
        odd = [name for name, value in largest.items() if value > MOST_WEIGHT]
        return f"tensor {odd[0]} holds {largest[odd[0]]:.3g}, at most {MOST_WEIGHT:g} is allowed" if odd else None
    code = arrays[CODE].numpy()[None]
    maps = decode_maps(prior, code)
    found = (
        ("its style code", np.abs(code).max(), MOST_CODE),
        ("a matrix of its style", max(np.abs(each.matrix - np.eye(3)).max() for each in maps), MOST_SLOPE),
        ("a shift of its style", max(np.abs(each.bias).max() for each in maps), MOST_SHIFT),
    )
    odd = [f"{what} holds {value:.3g}, training knew at most {most:g}" for what, value, most in found if value > most]
    return odd[0] if odd else None


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
        raise InputError(
            "generators cannot be trained without a reference set; give its folder, or set phase1.method to code"
        )
    return reference_set


def _new_teacher(config: Phase1Config) -> BottleGAN:
    """Return a client's model, to be filled."""
    return as_bottlegan(build_model(config.lab.model, [STYLE], torch.Generator()))
