"""The predictor: a trained network, and the normalizer that brings images to where it was trained."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from bottlegan.colormap.table import Convert
from bottlegan.core.errors import InputError
from bottlegan.core.task import Task
from bottlegan.imaging.files import Pixels
from bottlegan.models.document import PRIOR
from bottlegan.models.network_file import NetworkDocument, digest_model, load_network
from bottlegan.models.networks import Built
from bottlegan.models.weights import read_weights
from bottlegan.normalize.given import Given, check_levels
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.predict.local import fix_statistics, measure_reach
from bottlegan.training.task import predict_batch, predict_logits, to_images

STYLES = "styles.safetensors"
"""What a federation calls the model that knows its labs' styles, beside the network."""


@dataclass(frozen=True)
class Prediction:
    """What a network says of an image."""

    probabilities: NDArray[np.float32]
    """(K, H, W) of the pixels' classes, or (K,) of the whole patch's; calibrated, their sum over K is 1."""
    names: tuple[str, ...]
    """Of the K classes."""

    @property
    def classes(self) -> NDArray[np.uint8]:
        """The most probable class: ids (H, W), or () of a whole patch."""
        return self.probabilities.argmax(axis=0).astype(np.uint8)


class Predictor:
    """Says which class each pixel of an image, or the image as a whole, belongs to.

    A network that was trained on images in the reference stain gets them normalized: by the style of the lab that `fit`
    or `load` was told of or, without one, by a style that is fitted to each image.
    """

    def __init__(self, built: Built, said: NetworkDocument, model: Path, normalizer: Convert | None = None) -> None:
        """Combine a network, what its file says, the model for its normalizers, and one of them; `load` is how."""
        self.built, self.said, self.model, self.normalizer = built, said, model, normalizer

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model: str | Path | None = None,
        style: str | None = None,
        allowed: Collection[str] = (),
    ) -> Self:
        """Read a network from its file, which is checked.

        Args:
            path: What a federation wrote: network.safetensors.
            model: Brings images to the reference stain; by default the one that the network was trained with.
            style: Of the images, if the model knows it; else it is fitted to them.
            allowed: Factories of networks that are not ours and may be run, as `package.module:function`.
        """
        built, said = load_network(Path(path), allowed)
        if said.mode != "normalize":
            refuse_style(Path(path), said, model, style)
            return cls(built, said, PRIOR)
        found = find_styles(Path(path), said, None if model is None else Path(model))
        return cls(built, said, found, None if style is None else Normalizer.load(found, style))

    @property
    def task(self) -> Task:
        """What the network tells."""
        return self.said.task

    @property
    def normalizes(self) -> bool:
        """Whether images are to be normalized."""
        return self.said.mode == "normalize"

    def fit(self, images: Given | Iterable[Given], seed: int = 0) -> "Predictor":
        """Return a predictor for a lab, given some of its images: arrays, files, a folder or a slide; no labels."""
        if not self.normalizes:
            return self
        return self.using(Normalizer.fit(images, model=self.model, seed=seed))

    def using(self, normalizer: Convert) -> "Predictor":
        """Return a predictor whose images are normalized in a given way."""
        return Predictor(self.built, self.said, self.model, normalizer)

    def __call__(self, image: Pixels) -> Prediction:
        """Return what the network says of an image (H, W, 3), uint8, at the resolution that it was trained at."""
        shown = self.prepare(check_levels(image))
        logits = predict_logits(self.built, shown, self.said.temperature)
        return Prediction(torch.softmax(logits, dim=0).numpy(), self.task.classes)

    def predict_patches(self, patches: Sequence[Pixels]) -> NDArray[np.float32]:
        """Return the probabilities (N, K) of patches (H, W, 3) of one size, as of each by itself, in less time."""
        logits = predict_batch(self.built, np.stack([self.prepare(each) for each in patches]))
        return torch.softmax(logits / self.said.temperature, dim=1).numpy()

    def prepare(self, image: Pixels) -> Pixels:
        """Return an image (H, W, 3) as the network wants to see it."""
        if not self.normalizes:
            return image
        return (self.normalizer or Normalizer.fit(image, model=self.model))(image)

    def make_local(self, tissue: list[Pixels]) -> "LocalPredictor":
        """Return what predicts tiles that fit together, given tissue (H, W, 3) from all over the slide."""
        shown = to_images(np.stack([self.prepare(each) for each in tissue]))
        fixed = fix_statistics(self.built, shown)
        return LocalPredictor(self, fixed, measure_reach(fixed, shown))


@dataclass(frozen=True)
class LocalPredictor:
    """A predictor for the tiles of one slide."""

    whole: Predictor
    fixed: Built
    reach: int
    """Pixels that tiles must show beyond their edges."""

    def predict(self, levels: Pixels) -> NDArray[np.float32]:
        """Return the probabilities (K, H, W) of a part of the slide."""
        logits = predict_logits(self.fixed, self.whole.prepare(levels), self.whole.said.temperature)
        return torch.softmax(logits, dim=0).numpy()


def find_styles(path: Path, said: NetworkDocument, given: Path | None) -> Path:
    """Return the model that brings images to where a network was trained: given, shipped, or beside the network."""
    for each in [given] if given is not None else [PRIOR, path.with_name(STYLES)]:
        if each.is_file() and digest_model(read_weights(each)) == said.model:
            return each
    which = "the shipped prior" if given is None else str(given)
    raise InputError(
        f"{path}: was trained on images that another model than {which} had normalized; give the federation's "
        f"{STYLES} with --model, or model= in Python"
    )


def refuse_style(path: Path, said: NetworkDocument, model: object, style: object) -> None:
    """Refuse what would do nothing: a network that takes images as they are needs neither model nor style."""
    if model is not None or style is not None:
        raise InputError(f"{path}: takes images as they are (mode {said.mode}); leave out the model and the style")
