"""Training a network for a task: crops, geometric augmentation, losses and scores."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bottlegan.core.config import document
from bottlegan.core.errors import ConfigError, InputError
from bottlegan.core.task import IGNORED, Task
from bottlegan.data.labels import Labeled, Truth
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_levels
from bottlegan.losses import Classes, class_loss
from bottlegan.metrics.tally import Layout, tally
from bottlegan.models.networks import Built

Number = TypeVar("Number", bound=np.generic)
Vary = Callable[[Pixels, np.random.Generator], Pixels]
"""Changes the colors of crops (N, H, W, 3) before each step."""


@document
class TrainingConfig:
    """How a network is trained between two exchanges of its weights."""

    steps: int = 5
    """Number of steps in a round."""
    batch: int = 2
    crop: int = 128
    learning_rate: float = 0.003
    """Learning rate of the first round. It falls to zero along a cosine over all rounds."""
    loss: Classes = "dice-ce"

    def __post_init__(self) -> None:
        """Check that there is something to train."""
        if min(self.steps, self.batch, self.crop) < 1 or self.learning_rate <= 0:
            raise ConfigError("training: steps, batch, crop must be at least 1 and learning_rate above 0")


def draw_crops(samples: Sequence[Labeled], config: TrainingConfig, random: np.random.Generator) -> tuple[Pixels, Truth]:
    """Return crops (N, crop, crop, 3) at random places of random images, turned and mirrored, and their true classes.

    These are the class ids of pixels, (N, crop, crop), or of whole patches, (N,).
    """
    images: list[Pixels] = []
    truths: list[Truth] = []
    for row in random.integers(len(samples), size=config.batch):
        image, truth = samples[row].image, samples[row].truth
        top, left = (int(random.integers(side - config.crop + 1)) for side in image.shape[:2])
        window = np.s_[top : top + config.crop, left : left + config.crop]
        turns, mirrored = int(random.integers(4)), bool(random.integers(2))
        images.append(turn(image[window], turns, mirrored))
        truths.append(turn(truth[window], turns, mirrored) if truth.ndim else truth)
    return np.stack(images), np.stack(truths)


def check_crops(images: Sequence[Pixels], crop: int) -> None:
    """Refuse images that are smaller than the crops to train on."""
    smallest = min((min(image.shape[:2]) for image in images), default=crop)
    if smallest < crop:
        raise InputError(
            f"crops of {crop} px are larger than an image of {smallest} px; set phase2.training.crop to at most "
            f"{smallest}, or give larger images"
        )


def turn(crop: NDArray[Number], turns: int, mirrored: bool) -> NDArray[Number]:
    """Turn a crop (H, W, ...) by a number of right angles, then mirror it if wanted."""
    turned = np.rot90(crop, turns)
    return turned[:, ::-1] if mirrored else turned


def to_images(crops: Pixels) -> Tensor:
    """Return crops (N, H, W, 3) as images (N, 3, H, W) in [0, 1]."""
    return from_levels(torch.from_numpy(np.ascontiguousarray(crops)).permute(0, 3, 1, 2).contiguous())


def to_truth(truth: Truth) -> Tensor:
    """Return class ids as int64, which losses and tallies need."""
    return torch.from_numpy(truth.astype(np.int64))


def labeled_loss(
    network: Built, samples: Sequence[Labeled], config: TrainingConfig, vary: Vary, random: np.random.Generator
) -> Tensor:
    """Return the loss of the network on one batch of crops."""
    crops, truth = draw_crops(samples, config, random)
    return class_loss(config.loss, network(to_images(vary(crops, random))), to_truth(truth))


def proximal_term(network: nn.Module, start: dict[str, Tensor]) -> Tensor:
    """Return |w - w_start|^2 over all parameters; FedProx adds a multiple of it to the loss."""
    return torch.stack([(p - start[name]).square().sum() for name, p in network.named_parameters()]).sum()


def predict_logits(network: Built, image: Pixels, temperature: float = 1.0) -> Tensor:
    """Return the logits (K, H, W) or (K,) of an image (H, W, 3), divided by a temperature."""
    # A copy, because torch warns about read-only arrays, such as images from files.
    return predict_batch(network, image[None].copy())[0] / temperature


@torch.no_grad()
def predict_batch(network: Built, images: Pixels) -> Tensor:
    """Return the logits (N, K, H, W) or (N, K) of images (N, H, W, 3)."""
    network.network.eval()
    return network(to_images(images))


def lay_out(task: Task) -> Layout:
    """Return the layout of a task's tallies."""
    return Layout(task.count, ranked=task.kind == "classification")


def score(network: Built, test: Sequence[Labeled], task: Task, temperature: float = 1.0) -> Tensor:
    """Return the tally of a network's predictions on test images."""
    layout = lay_out(task)
    total = torch.zeros(layout.size, dtype=torch.float64)
    for sample in test:
        logits = predict_logits(network, sample.image, temperature).reshape(task.count, -1).T
        truth = to_truth(sample.truth).flatten()
        total += tally(logits[truth != IGNORED], truth[truth != IGNORED], layout)
    return total


def count_classes(samples: Sequence[Labeled], task: Task) -> list[int]:
    """Return the number of pixels or patches of each class."""
    counts = np.zeros(IGNORED + 1, np.int64)
    for sample in samples:
        counts += np.bincount(sample.truth.reshape(-1), minlength=IGNORED + 1)
    return counts[: task.count].tolist()
