"""How close images are to their ground truth: MSE, PSNR, SSIM and color difference, for each image."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from skimage.color import deltaE_ciede2000, rgb2lab
from skimage.metrics import structural_similarity
from torch import Tensor
from torchmetrics.functional.image import peak_signal_noise_ratio

from bottlegan.core.errors import InputError

Array = NDArray[np.float64]

PSNR_CAP = 100.0
"""The largest PSNR in dB. Identical images would have an infinite one, which breaks means and JSON."""

_WINDOW = 11  # the side of SSIM's Gaussian window with its usual sigma of 1.5


@dataclass(frozen=True)
class ImageScores:
    """Result of `compare_images`: each field has a finite value per image, float64 `(N,)`, on the CPU."""

    mse: Tensor
    psnr: Tensor
    ssim: Tensor
    delta_e: Tensor


def check_images(images: Tensor, what: str = "images") -> None:
    """Raise `InputError` unless `images` are floats in [0, 1], `(N, 3, H, W)`, not empty. The error names `what`."""
    if images.dim() != 4 or images.shape[1] != 3 or images.numel() == 0:
        raise InputError(f"expected {what} of shape (N, 3, H, W), got {tuple(images.shape)}")
    if not images.is_floating_point():
        raise InputError(f"expected {what} as floats in [0, 1], got {images.dtype}; convert them with from_levels")
    low, high = images.min().item(), images.max().item()
    # Written so that NaN, which min and max propagate, fails too.
    if not (low >= 0 and high <= 1):
        raise InputError(f"expected {what} in [0, 1], got values from {low:g} to {high:g}; scale or clip them")


def mean_squared_error(output: Tensor, truth: Tensor) -> Tensor:
    """Return the MSE `(N,)` in [0, 1], float64, of images `(N, 3, H, W)` in [0, 1]."""
    return (output.double() - truth.double()).square().mean(dim=(1, 2, 3))


def psnr(output: Tensor, truth: Tensor) -> Tensor:
    """Return the PSNR `(N,)` in [0, PSNR_CAP] dB, float64, of images `(N, 3, H, W)` in [0, 1]."""
    ratio = peak_signal_noise_ratio(output.double(), truth.double(), data_range=1.0, reduction="none", dim=(1, 2, 3))
    return ratio.clamp(max=PSNR_CAP)


def ssim(output: Tensor, truth: Tensor) -> Tensor:
    """Return the SSIM `(N,)` in [-1, 1], float64, of images `(N, 3, H, W)` in [0, 1].

    This is the original SSIM: Gaussian window of sigma 1.5, 11x11 pixels, mean over channels and over the pixels whose
    window lies in the image. Images smaller than the window are padded with their edge pixels. Even a single pixel then
    has a value: the similarity of the two colors.
    """
    # Not torchmetrics: a local variance is a difference of two nearly equal numbers. In its single precision a blank
    # image differs from itself (0.997), and in double precision it takes 25 times as long as scikit-image.
    pairs = zip(_to_numpy(output), _to_numpy(truth), strict=True)
    return torch.tensor([_ssim(*pair) for pair in pairs], dtype=torch.float64)


def _ssim(output: Array, truth: Array) -> float:
    """Return the SSIM of two images `(3, H, W)`."""
    if min(output.shape[1:]) < _WINDOW:
        margin = _WINDOW // 2
        output, truth = (
            np.pad(image, ((0, 0), (margin,) * 2, (margin,) * 2), mode="edge") for image in (output, truth)
        )
    return float(
        structural_similarity(
            output, truth, channel_axis=0, data_range=1.0, gaussian_weights=True, use_sample_covariance=False
        )
    )


def delta_e(output: Tensor, truth: Tensor) -> Tensor:
    """Return the mean color difference `(N,)`, at least 0, float64, of images `(N, 3, H, W)` in [0, 1].

    This is the mean CIEDE2000 over pixels: about 1 is just visible, and 100 is black against white. Like viewers, it
    treats the values as sRGB under daylight (D65). Convert slides with another ICC profile first.
    """
    lab_output, lab_truth = (rgb2lab(_to_numpy(images), channel_axis=1) for images in (output, truth))
    difference = deltaE_ciede2000(lab_output, lab_truth, channel_axis=1)
    return torch.from_numpy(difference).mean(dim=(1, 2))


def _to_numpy(images: Tensor) -> Array:
    """Return the images as double-precision NumPy arrays of the same shape."""
    return images.detach().cpu().double().numpy()


def compare_images(output: Tensor, truth: Tensor) -> ImageScores:
    """Return all scores of each image against its ground truth.

    Args:
        output: Images `(N, 3, H, W)` in [0, 1].
        truth: Their ground truth, in [0, 1] and of the same shape. Anything else raises an `InputError`.
    """
    check_images(output, "output images")
    check_images(truth, "true images")
    if output.shape != truth.shape:
        raise InputError(
            f"output images are {tuple(output.shape)} but true images {tuple(truth.shape)}; they must match"
        )
    output, truth = output.detach().cpu(), truth.detach().cpu()
    return ImageScores(
        mse=mean_squared_error(output, truth),
        psnr=psnr(output, truth),
        ssim=ssim(output, truth),
        delta_e=delta_e(output, truth),
    )
