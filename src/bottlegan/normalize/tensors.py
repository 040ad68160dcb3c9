"""A normalizer's map for batches of floats in [0, 1] on any device, computed by the torch network.

It equals the kernel's map within rounding: the same network, and the same colors that stay unchanged.
"""

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bottlegan.colormap.ink import spare_ink
from bottlegan.core.errors import InputError
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.files import to_model
from bottlegan.models.freeze import Direction, choose_generator, describe_ink, maps_colors
from bottlegan.models.paradigms import StyleModel
from bottlegan.models.pixel import PixelGenerator
from bottlegan.models.weights import Floats, ModelWeights


class TensorMap:
    """The network of a style, frozen, on every device that it has been used on."""

    def __init__(self, model: ModelWeights, code: Floats, *, everything: bool) -> None:
        """Build the network with these weights."""
        network = to_model(model.without_encoders()).requires_grad_(False)
        self._networks = {torch.device("cpu"): network}
        self._model, self._code = model, code.copy()
        spares = not everything and maps_colors(model.document.model.generator)
        ways: tuple[Direction, ...] = ("normalize", "restain")
        self._ink = {way: describe_ink(model, code, way) if spares else None for way in ways}

    @torch.no_grad()
    def __call__(self, images: Tensor, direction: Direction, *, changed: bool = True) -> Tensor:
        """Return mapped images (N, 3, H, W), or one (3, H, W), on their device and in their precision.

        Unless `changed`, return a copy.
        """
        batch = to_checked_batch(images)
        if not changed:
            return images.clone()
        with torch.autocast(images.device.type, enabled=False):  # half precision would show as bands of color
            mapped = self._map(batch.float(), direction)
        return mapped.to(images.dtype).reshape(images.shape)

    def map_floats(self, image: NDArray[Any], direction: Direction, *, changed: bool = True) -> NDArray[Any]:
        """Return a mapped array (H, W, 3) of floats in [0, 1], in its precision."""
        if image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise InputError(
                f"an array of floats must be (height, width, 3), got {image.shape}; give RGB, channels last"
            )
        mapped = self(torch.from_numpy(np.ascontiguousarray(image)).movedim(2, 0), direction, changed=changed)
        return mapped.movedim(0, 2).contiguous().numpy()

    def _map(self, images: Tensor, direction: Direction) -> Tensor:
        network, ink = self._on(images.device), self._ink[direction]
        if ink is None:
            run = network.normalize if direction == "normalize" else network.restain
            return run(images, torch.from_numpy(self._code).to(images.device))
        name, code = choose_generator(self._model, self._code.tolist(), direction)
        generator = network.get_submodule(name)
        assert isinstance(generator, PixelGenerator)  # noqa: S101 - no other maps colors
        codes = torch.tensor(code, device=images.device).expand(len(images), -1)

        def spare(before: Tensor, after: Tensor) -> Tensor:
            return spare_ink(before[0, :, 0].T, after[0, :, 0].T, ink).T[None, :, None]

        return generator.map_pixels(images, codes, spare)

    def map_levels(self, levels: Pixels, direction: Direction) -> Pixels:
        """Return RGB levels (H, W, 3), mapped by a network that uses more than one pixel."""
        return from_batch(self(to_batch(levels), direction))[0]

    def _on(self, device: torch.device) -> StyleModel:
        if device not in self._networks:
            self._networks[device] = copy.deepcopy(self._networks[torch.device("cpu")]).to(device)
        return self._networks[device]


def to_checked_batch(images: Tensor) -> Tensor:
    """Return images (N, 3, H, W), or one image (3, H, W) as a batch of one; refuse anything else."""
    batch = images[None] if images.ndim == 3 else images
    check_batch(batch)
    return batch


def check_batch(images: Tensor) -> None:
    """Refuse anything but a batch of images."""
    if not images.is_floating_point():
        raise InputError(f"a tensor must hold floats in [0, 1], got {images.dtype}; use tensor.float() / 255")
    if images.ndim != 4 or images.shape[1] != 3:
        shape = tuple(images.shape)
        raise InputError(f"a tensor must be a batch (N, 3, height, width), got {shape}; add or permute dimensions")
    if images.numel() and not (images.amin() >= 0 and images.amax() <= 1):
        low, high = images.amin().item(), images.amax().item()
        raise InputError(f"a tensor must hold values in [0, 1], got {low:g} to {high:g}; scale it, or clamp it")
