"""Phase 1, the part that both sides share: its settings, and the form of an upload.

There are three methods. `code`: all labs have the same frozen prior, each fits only its code, and the global model is
the prior with all codes. `generators`: each lab trains its own BottleGAN to the map that onboarding finds, and the
server distills them into one by regression. `adversarial`, the paper's method: each lab trains its BottleGAN with
critics between its images and the reference set, and the server trains another on the reference set, restained by all
of them. No pixel ever leaves a lab.
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
"""Name of the tensor with the client's style code in an upload."""
STYLE = "client"
"""Name of a client's only style until the server renames it after the client."""


MOST_CODE, MOST_SLOPE, MOST_SHIFT = 100.0, 15.0, 5.0
"""Largest number in a style code, in its maps' matrices minus identity, and in their shifts of density.

These are three times the largest values in 67 labs simulated as for the prior's training: 34, 5.5 and 1.7."""
MOST_WEIGHT = 1000.0
"""Largest number in a generator."""


@document
class Phase1Config:
    """How the clients' styles are found and joined into one model."""

    method: Phase1Method = "code"
    code_noise: float = 0.0
    """Standard deviation of the noise that labs add to each number of their code's map of densities."""
    # The model holds the map that onboarding finds before step 0, so the warm start has almost nothing left to learn.
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
        """The settings of a client's training, unless it uploads a code."""
        return self.adversarial.lab if self.method == "adversarial" else self.train

    @property
    def server(self) -> DistillConfig:
        """How the server distills the clients' generators."""
        return self.adversarial.server if self.method == "adversarial" else self.distill


def expected_shapes(config: Phase1Config, prior: ModelDocument) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of all tensors of a valid upload, which are float32 and finite."""
    if config.method == "code":
        return {CODE: (prior.model.code_size,)}
    return {name: tuple(tensor.shape) for name, tensor in to_arrays(_new_teacher(config)).items()}


def find_odd_style(arrays: Mapping[str, Tensor], config: Phase1Config, prior: ModelWeights) -> str | None:
    """Return what is outside the range seen in training, in an upload with the expected names and shapes."""
    if config.method != "code":
        largest = {name: float(tensor.abs().max()) for name, tensor in arrays.items() if tensor.numel()}
        odd = [name for name, value in largest.items() if value > MOST_WEIGHT]
        return f"tensor {odd[0]} holds {largest[odd[0]]:.3g}, at most {MOST_WEIGHT:g} is allowed" if odd else None
    code = arrays[CODE].numpy()[None]
    maps = decode_maps(prior, code)
    extremes = (
        ("its style code", np.abs(code).max(), MOST_CODE),
        ("a matrix of its style", max(np.abs(style.matrix - np.eye(3)).max() for style in maps), MOST_SLOPE),
        ("a shift of its style", max(np.abs(style.bias).max() for style in maps), MOST_SHIFT),
    )
    for what, value, most in extremes:
        if value > most:
            return f"{what} holds {value:.3g}, training knew at most {most:g}"
    return None


def to_arrays(model: BottleGAN) -> dict[str, Tensor]:
    """Return both generators and the only code of a client's model."""
    parts = {"normalizer": model.normalizer, "restainer": model.restainer}
    generators = {
        f"{part}.{name}": tensor.detach().cpu().clone()
        for part, generator in parts.items()
        for name, tensor in generator.state_dict().items()
    }
    return {**generators, CODE: model.codes.table.detach().cpu()[0].clone()}


def from_arrays(arrays: Mapping[str, Tensor], config: Phase1Config) -> BottleGAN:
    """Rebuild the model that a client has uploaded, from tensors of the expected names and shapes."""
    model = _new_teacher(config)
    for part, generator in (("normalizer", model.normalizer), ("restainer", model.restainer)):
        generator.load_state_dict({name: arrays[f"{part}.{name}"] for name in generator.state_dict()})
    with torch.no_grad():
        model.codes.table.copy_(arrays[CODE][None])
    return model.eval()


def need_reference(reference_set: Sequence[Pixels] | None) -> Sequence[Pixels]:
    """Return the public reference set, or refuse to train generators without it."""
    if not reference_set:
        raise InputError(
            "generators cannot be trained without a reference set; give its folder, or set phase1.method to code"
        )
    return reference_set


def _new_teacher(config: Phase1Config) -> BottleGAN:
    """Return an empty model for a client."""
    return as_bottlegan(build_model(config.lab.model, [STYLE], torch.Generator()))
