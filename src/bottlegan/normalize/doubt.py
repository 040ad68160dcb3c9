"""The uncertainty of each normalized color, pixel by pixel."""

from typing import TYPE_CHECKING

import numpy as np

from bottlegan.colormap.levels import DENSITY
from bottlegan.colormap.table import ColorMap
from bottlegan.core.seeding import numpy_stream
from bottlegan.imaging.files import Pixels
from bottlegan.models.freeze import freeze
from bottlegan.models.weights import Floats, ModelWeights

if TYPE_CHECKING:
    from torch import Tensor

CODE_NOISE = 0.15
"""Error of each number of a fitted code, in units of its spread among all styles: the median error of fits to one to
four images of simulated labs, whose true codes are known."""
DRAWS = 8
"""Number of codes drawn around a style's own, to see how much the error matters."""


def doubt_levels(levels: Pixels, model: ModelWeights, code: Floats) -> Floats:
    """Return the doubt (H, W) of RGB levels (H, W, 3). Each color is computed once."""
    keys = levels.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
    distinct, place = np.unique(keys, return_inverse=True)
    colors = np.stack([distinct >> 16, distinct >> 8 & 255, distinct & 255], axis=1)
    return doubt_densities(DENSITY[colors], model, code)[place].reshape(levels.shape[:2])


def doubt_batch(images: "Tensor", model: ModelWeights, code: Floats) -> "Tensor":
    """Return the doubt (N, H, W) of a batch (N, 3, H, W), or (H, W) of an image (3, H, W), on its device."""
    import torch  # noqa: PLC0415 - it is there already, where there is a tensor

    from bottlegan.normalize.tensors import to_checked_batch  # noqa: PLC0415 - it imports torch
    from bottlegan.stain.density import to_density  # noqa: PLC0415 - it imports torch

    density = to_density(to_checked_batch(images).detach().float().cpu()).movedim(1, 3)
    doubts = torch.from_numpy(doubt_densities(density.reshape(-1, 3).numpy(), model, code))
    return doubts.reshape(density.shape[:3] if images.ndim == 4 else density.shape[1:3]).to(images.device)


def doubt_densities(density: Floats, model: ModelWeights, code: Floats) -> Floats:
    """Return the doubt (N,) of densities (N, 3)."""
    noise = numpy_stream(0, "uncertainty").standard_normal((DRAWS, len(code))).astype(np.float32)
    total, squares = np.zeros(density.shape), np.zeros(density.shape)
    for offset in noise:
        drawn = _normalize(density, model, code + CODE_NOISE * offset).astype(np.float64)
        total += drawn
        squares += drawn**2
    variance = np.maximum(squares - total**2 / DRAWS, 0).sum(1) / (DRAWS - 1)
    stains = model.arrays["reference.stains"].astype(np.float64)
    normal = np.cross(stains[0], stains[1])
    length = float(np.linalg.norm(normal))
    above = _normalize(density, model, code) - model.glass
    across = above @ (normal / length) if length else np.zeros(len(density))
    return np.asarray(np.sqrt(variance) + np.abs(across), np.float32)


def _normalize(density: Floats, model: ModelWeights, code: Floats) -> Floats:
    mapped = ColorMap(freeze(model, code, "normalize"), remembers=False).map_densities(density)
    return np.clip(mapped, 0, DENSITY[0])
