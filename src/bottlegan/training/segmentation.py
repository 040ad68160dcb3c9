"""Training a segmentation network: crops, geometric augmentation, plain steps, and its calibration afterwards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from bottlegan.config import document
from bottlegan.errors import ConfigError, InputError
from bottlegan.imaging.files import Levels
from bottlegan.imaging.tensors import from_levels
from bottlegan.losses import Segmentation, segmentation_loss
from bottlegan.metrics.calibration import negative_log_likelihood
from bottlegan.metrics.tally import SIZE, tally

Number = TypeVar("Number", bound=np.generic)
Mask = NDArray[np.bool_]
Vary = Callable[[Levels, np.random.Generator], Levels]
"""What is done to the colors of crops (N, H, W, 3) before each step."""

COLDEST, HOTTEST = 0.2, 5.0
"""Between which a temperature is looked for."""


@document
class SegmentationConfig:
    """How a network is trained between two exchanges of its weights."""

    steps: int = 5
    """Steps in a round."""
    batch: int = 2
    crop: int = 128
    learning_rate: float = 0.003
    """Of the first round; it falls to zero along a cosine over all rounds."""
    loss: Segmentation = "dice-ce"

    def __post_init__(self) -> None:
        """Check that there is something to train."""
        if min(self.steps, self.batch, self.crop) < 1 or self.learning_rate <= 0:
            raise ConfigError("segmentation: steps, batch, crop must be at least 1 and learning_rate above 0")


@dataclass(frozen=True)
class Labeled:
    """An image (H, W, 3) and where its epithelium is (H, W)."""

    image: Levels
    mask: Mask


def draw_crops(
    given: Sequence[Labeled], config: SegmentationConfig, random: np.random.Generator
) -> tuple[Levels, Mask]:
    """Return crops (N, crop, crop, 3) and their masks at random places of random images, turned and mirrored.

    Images smaller than a crop are continued by their reflection.
    """
    images: list[Levels] = []
    masks: list[Mask] = []
    for row in random.integers(len(given), size=config.batch):
        image, mask = fill_up(given[row], config.crop)
        top, left = (int(random.integers(side - config.crop + 1)) for side in mask.shape)
        window = np.s_[top : top + config.crop, left : left + config.crop]
        turns, mirrored = int(random.integers(4)), bool(random.integers(2))
        images.append(turn(image[window], turns, mirrored))
        masks.append(turn(mask[window], turns, mirrored))
    return np.stack(images), np.stack(masks)


def turn(crop: NDArray[Number], turns: int, mirrored: bool) -> NDArray[Number]:
    """Return a crop (H, W, ...), turned by so many right angles, then mirrored or not."""
    turned = np.rot90(crop, turns)
    return turned[:, ::-1] if mirrored else turned


def fill_up(labeled: Labeled, side: int) -> tuple[Levels, Mask]:
    """Return image and mask, continued by their reflection where they are smaller than `side`."""
    missing = [max(0, side - length) for length in labeled.mask.shape]
    if not any(missing):
        return labeled.image, labeled.mask
    edges = [(0, length) for length in missing]
    return np.pad(labeled.image, [*edges, (0, 0)], mode="symmetric"), np.pad(labeled.mask, edges, mode="symmetric")


def to_tensors(crops: Levels, masks: Mask | None = None) -> tuple[Tensor, Tensor]:
    """Return crops (N, H, W, 3) as images (N, 3, H, W) in [0, 1], and masks (N, H, W) as a truth (N, 1, H, W)."""
    images = from_levels(torch.from_numpy(np.ascontiguousarray(crops)).permute(0, 3, 1, 2).contiguous())
    truth = torch.empty(0) if masks is None else torch.from_numpy(masks[:, None].astype(np.float32))
    return images, truth


def labeled_loss(
    network: nn.Module, given: Sequence[Labeled], config: SegmentationConfig, vary: Vary, random: np.random.Generator
) -> Tensor:
    """Return the loss of the network on one batch of crops."""
    crops, masks = draw_crops(given, config, random)
    images, truth = to_tensors(vary(crops, random), masks)
    return segmentation_loss(config.loss, network(images), truth)


def proximal_term(network: nn.Module, start: dict[str, Tensor]) -> Tensor:
    """Return |w - w_start|^2 over all parameters, of which FedProx adds a share to the loss."""
    return torch.stack([(p - start[name]).square().sum() for name, p in network.named_parameters()]).sum()


@torch.no_grad()
def predict(network: nn.Module, image: Levels, temperature: float = 1.0) -> Tensor:
    """Return the logits (H, W) of an image (H, W, 3), divided by a temperature."""
    network.eval()
    # Copied, because torch warns of an image that must not be written to, as those from files.
    images, _ = to_tensors(image[None].copy())
    return network(images)[0, 0] / temperature


def score(network: nn.Module, test: Sequence[Labeled], temperature: float = 1.0) -> Tensor:
    """Return the tally of a network over test images."""
    total = torch.zeros(SIZE, dtype=torch.float64)
    for each in test:
        total += tally(predict(network, each.image, temperature), torch.from_numpy(each.mask))
    return total


def calibrate(network: nn.Module, given: Sequence[Labeled]) -> float:
    """Return the temperature that fits a network best on labeled images that it was not trained on."""
    logits = torch.cat([predict(network, each.image).flatten() for each in given])
    return fit_temperature(logits, torch.cat([torch.from_numpy(each.mask).flatten() for each in given]))


def fit_temperature(logits: Tensor, truth: Tensor) -> float:
    """Return the temperature that the logits, divided by it, have the smallest NLL at.

    The NLL is convex in the inverse temperature, so there is one minimum. Dividing changes no class, hence no IOU; it
    only makes probabilities honest.
    """
    if logits.numel() == 0:
        raise InputError("there is no pixel to fit a temperature to; give labeled images")

    def surprise(sharpness: float) -> float:
        return negative_log_likelihood(logits * sharpness, truth).item()

    return 1 / float(minimize_scalar(surprise, bounds=(1 / HOTTEST, 1 / COLDEST), method="bounded").x)
