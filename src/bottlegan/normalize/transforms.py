"""Normalizing and restaining as layers, for images (3, H, W) or batches (N, 3, H, W) of floats in [0, 1] on any device.

They hold no parameters, so optimizers and checkpoints of the surrounding module do not see them.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import get_worker_info

from bottlegan.core.errors import InputError
from bottlegan.core.seeding import torch_stream
from bottlegan.models.paradigms import StyleModel
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.normalize.tensors import to_checked_batch

Styles = StyleModel | str | Path | Normalizer | Sequence[Normalizer]
"""A model or its file, meaning all its styles, or normalizers, each of one style."""


class Normalize(nn.Module):
    """Brings images of one lab to the reference stain."""

    def __init__(self, normalizer: Normalizer) -> None:
        """Take the lab's normalizer."""
        super().__init__()
        self.normalizer = normalizer

    def forward(self, images: Tensor) -> Tensor:
        """Return images (N, 3, H, W), or one (3, H, W), in [0, 1] in the reference stain."""
        return self.normalizer(images)


class Restain(nn.Module):
    """Brings reference-stained images to the style of one lab."""

    def __init__(self, normalizer: Normalizer) -> None:
        """Take the lab's normalizer."""
        super().__init__()
        self.normalizer = normalizer

    def forward(self, images: Tensor) -> Tensor:
        """Return images (N, 3, H, W), or one (3, H, W), in [0, 1] in the lab's style."""
        return self.normalizer.restain(images)


class RandomRestain(nn.Module):
    """Brings each reference-stained image to a random style, so that a network trained on them learns all styles.

    This is the paper's decomposed dataset: every content image in every style, none of them stored.
    """

    def __init__(
        self, styles: Styles, *, p: float = 1.0, seed: int = 0, generator: torch.Generator | None = None
    ) -> None:
        """Take the styles to draw from, all with the same probability.

        Args:
            styles: A model or its file, for all its styles, or normalizers.
            p: The probability that an image is restained rather than left unchanged.
            seed: The same seed gives the same styles. In a data loader's worker it is combined with the worker's own
                seed, so that no two workers, and no two epochs, draw the same styles.
            generator: Generator to draw from instead. In workers, the caller must then seed it.
        """
        super().__init__()
        if not 0 <= p <= 1:
            raise InputError(f"p is a probability, got {p}; give a number from 0 to 1")
        self.normalizers = list_normalizers(styles)
        self.p, self.seed, self.generator = p, seed, generator
        self._streams: dict[int | None, torch.Generator] = {}

    def forward(self, images: Tensor) -> Tensor:
        """Return images (N, 3, H, W), or one (3, H, W), in [0, 1], each in its own random style.

        The next call draws other styles.
        """
        output = to_checked_batch(images).detach().clone()
        for index, image in enumerate(output):
            row = self.draw()
            if row is not None:
                output[index] = self.normalizers[row].restain(image)
        return output.reshape(images.shape)

    def draw(self) -> int | None:
        """Return the index of a style, or None for an image that stays unchanged."""
        random = self.generator or self._stream()
        chance = torch.rand((), generator=random, device=random.device).item()
        row = torch.randint(len(self.normalizers), (), generator=random, device=random.device).item()
        return int(row) if chance < self.p else None

    def _stream(self) -> torch.Generator:
        worker = get_worker_info()
        key = None if worker is None else worker.seed
        if key not in self._streams:
            names = ("random restain",) if key is None else ("random restain", key)
            self._streams[key] = torch_stream(self.seed, *names)
        return self._streams[key]


def list_normalizers(styles: Styles) -> list[Normalizer]:
    """Return a normalizer for each style, at least one."""
    if isinstance(styles, Normalizer):
        return [styles]
    normalizers = list(styles) if isinstance(styles, list | tuple) else Normalizer.all_of(styles)  # type: ignore[arg-type]
    if not normalizers:
        raise InputError("there is no style to restain to; give a model with styles, or normalizers")
    if wrong := [style for style in normalizers if not isinstance(style, Normalizer)]:
        raise InputError(f"a style must be a Normalizer, got a {type(wrong[0]).__name__}; use Normalizer.load")
    return normalizers
