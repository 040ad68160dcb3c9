"""The predictor: a trained network, and the normalizer that brings images to the stain it was trained on."""

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
"""Name of a federation's model with its labs' styles, beside the network."""


@dataclass(frozen=True)
class Prediction:
    """A network's prediction of an image."""

    probabilities: NDArray[np.float32]
    """(K, H, W) for each pixel, or (K,) for the whole patch. They are calibrated and sum to 1 over K."""
    names: tuple[str, ...]
    """Names of the K classes."""

    @property
    def classes(self) -> NDArray[np.uint8]:
        """The most probable class: ids (H, W), or () for a whole patch."""
        return self.probabilities.argmax(axis=0).astype(np.uint8)


class Predictor:
    """Predicts the class of each pixel of an image, or of the image as a whole.

    If the network was trained on images in the reference stain, images are normalized first: with the lab's style that
    `fit` or `load` received or, without one, with a style that is fitted to each image.
    """

    def __init__(self, built: Built, document: NetworkDocument, model: Path, normalizer: Convert | None = None) -> None:
        """Combine a network, its file's document, the model of its normalizers, and one of them. Prefer `load`."""
        self.built, self.document, self.model, self.normalizer = built, document, model, normalizer

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
            path: A federation's network.safetensors.
            model: Brings images to the reference stain; by default the model that the network was trained with.
            style: Style of the images, if the model knows it. Otherwise it is fitted to them.
            allowed: Factories of custom networks that may run, as `package.module:function`.
        """
        built, document = load_network(Path(path), allowed)
        if document.mode != "normalize":
            refuse_style(Path(path), document, model, style)
            return cls(built, document, PRIOR)
        styles_file = find_styles(Path(path), document, None if model is None else Path(model))
        return cls(built, document, styles_file, None if style is None else Normalizer.load(styles_file, style))

    @property
    def task(self) -> Task:
        """The task of the network."""
        return self.document.task

    @property
    def normalizes(self) -> bool:
        """Whether images are normalized first."""
        return self.document.mode == "normalize"

    def fit(self, images: Given | Iterable[Given], seed: int = 0) -> "Predictor":
        """Return a predictor for a lab, fitted to some of its images: arrays, files, a folder or a slide, unlabeled."""
        if not self.normalizes:
            return self
        return self.using(Normalizer.fit(images, model=self.model, seed=seed))

    def using(self, normalizer: Convert) -> "Predictor":
        """Return a predictor that normalizes images with this map."""
        return Predictor(self.built, self.document, self.model, normalizer)

    def __call__(self, image: Pixels) -> Prediction:
        """Return the prediction of an image (H, W, 3), uint8, at the resolution that the network was trained at."""
        shown = self.prepare(check_levels(image))
        logits = predict_logits(self.built, shown, self.document.temperature)
        return Prediction(torch.softmax(logits, dim=0).numpy(), self.task.classes)

    def predict_patches(self, patches: Sequence[Pixels]) -> NDArray[np.float32]:
        """Return the probabilities (N, K) of patches (H, W, 3) of one size. Faster than, but equal to, one by one."""
        logits = predict_batch(self.built, np.stack([self.prepare(patch) for patch in patches]))
        return torch.softmax(logits / self.document.temperature, dim=1).numpy()

    def prepare(self, image: Pixels) -> Pixels:
        """Return an image (H, W, 3), prepared for the network."""
        if not self.normalizes:
            return image
        return (self.normalizer or Normalizer.fit(image, model=self.model))(image)

    def make_local(self, tissue: list[Pixels]) -> "LocalPredictor":
        """Return a predictor whose tiles fit together, from tissue (H, W, 3) from all over the slide."""
        shown = to_images(np.stack([self.prepare(image) for image in tissue]))
        fixed = fix_statistics(self.built, shown)
        return LocalPredictor(self, fixed, measure_reach(fixed, shown))


@dataclass(frozen=True)
class LocalPredictor:
    """A predictor for the tiles of one slide."""

    whole: Predictor
    fixed: Built
    reach: int
    """Pixels that tiles need beyond their edges."""

    def predict(self, levels: Pixels) -> NDArray[np.float32]:
        """Return the probabilities (K, H, W) of a part of the slide."""
        logits = predict_logits(self.fixed, self.whole.prepare(levels), self.whole.document.temperature)
        return torch.softmax(logits, dim=0).numpy()


def find_styles(path: Path, document: NetworkDocument, chosen: Path | None) -> Path:
    """Return the model whose normalization a network was trained with: `chosen`, shipped, or beside the network."""
    for candidate in [chosen] if chosen is not None else [PRIOR, path.with_name(STYLES)]:
        if candidate.is_file() and digest_model(read_weights(candidate)) == document.model:
            return candidate
    which = "the shipped prior" if chosen is None else str(chosen)
    raise InputError(
        f"{path}: was trained on images normalized by a different model than {which}; give the federation's "
        f"{STYLES} with --model, or model= in Python"
    )


def refuse_style(path: Path, document: NetworkDocument, model: object, style: object) -> None:
    """Refuse useless arguments: a network that takes images in any stain needs neither model nor style."""
    if model is not None or style is not None:
        raise InputError(f"{path}: takes images in any stain (mode {document.mode}); leave out the model and the style")
