"""Closed-form normalizers, ours and those of other packages, with a common interface.

A normalizer is prepared with a pool of reference images (N, 3, H, W), and then maps single images (3, H, W).
"""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.stain.macenko import DensityMap, fit_density_map, sample_density, summarize_reference

Normalize = Callable[[Tensor], Tensor]
Prepare = Callable[[Tensor], Normalize]
Item = TypeVar("Item")


def halves(items: Sequence[Item]) -> tuple[Sequence[Item], Sequence[Item]]:
    """Cut a set in two. Each half is the other's reference set, so that no method sees a patch in both stains."""
    return items[::2], items[1::2]


def has_torchstain() -> bool:
    """Return whether torchstain is installed, which comes with the extra `bench`."""
    return importlib.util.find_spec("torchstain") is not None


def fit_robust(pool: Tensor) -> Callable[[Tensor], DensityMap]:
    """Return a function that fits our robust Macenko to one image, using only the statistics of the pool."""
    reference = summarize_reference([pool])
    return lambda image: fit_density_map(sample_density(image[None]), reference)


def prepare_robust(pool: Tensor) -> Normalize:
    """Normalize each image with robust Macenko fitted to it, using only the statistics of the pool."""
    fit = fit_robust(pool)
    return lambda image: fit(image)(image[None])[0]


def prepare_torchstain(kind: Literal["Macenko", "Reinhard"]) -> Prepare:
    """Fit torchstain's normalizer to a mosaic of the pool, so that it sees as much of the reference stain as ours."""

    def prepare(pool: Tensor) -> Normalize:
        if not has_torchstain():
            raise InputError("torchstain is not installed; `pip install 'bottlegan[bench]'`")
        package = importlib.import_module("torchstain")  # an extra
        normalizer = getattr(package.normalizers, f"{kind}Normalizer")(backend="torch")
        normalizer.fit(255 * torch.cat(list(pool[::8, :, ::2, ::2]), dim=2))

        def normalize(image: Tensor) -> Tensor:
            output = normalizer.normalize(255 * image)
            levels = output[0] if isinstance(output, tuple) else output
            return (levels.float() / 255).clamp(0, 1).permute(2, 0, 1)

        return normalize

    return prepare


METHODS: dict[str, Prepare] = {
    "nothing": lambda pool: lambda image: image,
    "torchstain Macenko": prepare_torchstain("Macenko"),
    "torchstain Reinhard": prepare_torchstain("Reinhard"),
    "robust Macenko (ours)": prepare_robust,
}


def attempt(normalize: Normalize, image: Tensor) -> Tensor | None:
    """Return the normalized image, or None if the method fails."""
    try:
        output = normalize(image)
    except (RuntimeError, ValueError, IndexError):
        return None
    return output if bool(output.isfinite().all()) else None
