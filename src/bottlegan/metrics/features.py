"""Features for comparing sets of images: those of Inception, or our own, which need no download.

An extractor turns each image into a vector by itself: an image's features never depend on its batch.
"""

import io
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bottlegan.core.errors import InputError, MissingError
from bottlegan.imaging.tensors import to_levels
from bottlegan.stain.density import to_density

_SCALES = 4
_BLUR = torch.tensor([1, 4, 6, 4, 1], dtype=torch.float64) / 16
# Root mean square slopes along these three directions determine the whole matrix of second moments.
_DIRECTIONS = tuple((math.cos(angle), math.sin(angle)) for angle in (0, math.pi / 3, 2 * math.pi / 3))


class FeatureExtractor(nn.Module):
    """Base of all extractors: from images `(N, 3, H, W)` in [0, 1] to features `(N, num_features)`."""

    name: str
    """Identifies the features. Different features must have a different name."""
    comparable: bool
    """Whether a Fréchet distance of these features is comparable with published FIDs."""
    num_features: int


def offline_features(image: Tensor) -> Tensor:
    """Return 33 features of an image: its colors, and its texture at four scales, all in units of optical density.

    - 3 means of optical density (OD), one per channel;
    - 6 standard deviations, of R, G, B, R-G, R-B and G-B, which together determine the covariance;
    - at each of the scales 1, 2, 4 and 8 pixels: 3 standard deviations of the detail that a blur removes, one per
      channel, and 3 root mean square slopes of the mean OD along 0, 60 and 120 degrees.

    Args:
        image: RGB `(3, H, W)` in [0, 1], of any size down to a single pixel.

    Returns:
        Features `(33,)`, float64, on the CPU, where double precision gives the same features for the same image.
    """
    density = to_density(image.to("cpu", torch.float64))
    red, green, blue = density.unbind()
    six = torch.stack([red, green, blue, red - green, red - blue, green - blue])
    features = [density.mean(dim=(1, 2)), six.std(dim=(1, 2), correction=0)]
    for _ in range(_SCALES):
        blurred = _blur(density)
        features += [(density - blurred).std(dim=(1, 2), correction=0), _slopes(density.mean(dim=0))]
        density = blurred[:, ::2, ::2]
    return torch.cat(features)


def _blur(planes: Tensor) -> Tensor:
    """Return planes `(C, H, W)` smoothed by five binomial taps along each axis, padded with their edge pixels."""
    padded = F.pad(planes, (2, 2, 2, 2), mode="replicate")
    return (padded.unfold(-1, 5, 1) @ _BLUR).unfold(-2, 5, 1) @ _BLUR


def _slopes(plane: Tensor) -> Tensor:
    """Return the root mean square slopes `(3,)` of a plane `(H, W)` along three directions."""
    padded = F.pad(plane[None], (1, 1, 1, 1), mode="replicate")[0]
    across = (padded[1:-1, 2:] - padded[1:-1, :-2]) / 2
    down = (padded[2:, 1:-1] - padded[:-2, 1:-1]) / 2
    return torch.stack([(x * across + y * down).square().mean().sqrt() for x, y in _DIRECTIONS])


class OfflineFeatures(FeatureExtractor):
    """`offline_features` of each image. Needs no weights. Distances are in OD squared, not comparable with FIDs."""

    # Any change to a feature must change the name, so that numbers of two versions are never mixed up.
    name = "offline-v1"
    comparable = False
    num_features = 9 + 6 * _SCALES

    def forward(self, images: Tensor) -> Tensor:
        """Return features `(N, 33)`, float64, on the CPU, of images `(N, 3, H, W)` in [0, 1]."""
        return torch.stack([offline_features(image) for image in images])


class InceptionFeatures(FeatureExtractor):
    """The 2048 features of the original FID: Inception v3 with TensorFlow's weights and resizing.

    Needs the package torch-fidelity and its weights as a local file. Nothing is downloaded.
    """

    name = "inception-v3-2048"
    comparable = True
    num_features = 2048

    def __init__(self, weights: Path) -> None:
        """Load the file `weights`, torch-fidelity's `weights-inception-2015-12-05-6726825d.pth`.

        Raises `MissingError` if the file is missing, and `InputError` if the package is missing or the file holds
        anything but these weights.
        """
        super().__init__()
        state = _load_weights(weights)
        try:
            from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3  # noqa: PLC0415
        except ImportError as error:
            raise InputError(
                f"Inception features need torch-fidelity: {error}; `pip install torch-fidelity`"
            ) from error
        # torch-fidelity unpickles its input without limits, so it gets our own copy of the checked tensors.
        buffer = io.BytesIO()
        torch.save(state, buffer)
        buffer.seek(0)
        try:
            self._network: nn.Module = FeatureExtractorInceptionV3(self.name, ["2048"], buffer)
        except RuntimeError as error:
            raise InputError(f"{weights} does not hold the weights of torch-fidelity's Inception v3") from error
        self.requires_grad_(False).eval()

    def forward(self, images: Tensor) -> Tensor:
        """Return features `(N, 2048)` of images `(N, 3, H, W)` in [0, 1], of any size."""
        features: Tensor = self._network(to_levels(images))[0]
        return features

    def train(self, mode: bool = True) -> "InceptionFeatures":
        """Stay in evaluation mode regardless of `mode`: batch statistics would make features depend on the batch."""
        return super().train(False)


def _load_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file that holds a dictionary of tensors and nothing else."""
    if not path.is_file():
        raise MissingError(f"there are no Inception weights at {path}; give torch-fidelity's .pth file")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # for a damaged file, torch raises any of a dozen exceptions
        raise InputError(f"{path} is not a file of plain tensors; give torch-fidelity's .pth file") from error
    if not (isinstance(state, dict) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items())):
        raise InputError(f"{path} is not a dictionary of tensors; give torch-fidelity's .pth file")
    return state
