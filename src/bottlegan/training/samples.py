"""What a training step sees: random pixels or, if a critic needs them, crops.

A pixel generator maps every pixel on its own, so it learns more from a few random pixels of many images than from crops
of a few. Pixels are stored as images (N, 3, 1, P), so that the same code maps both.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.core.seeding import torch_stream
from bottlegan.imaging.tensors import from_levels
from bottlegan.stain.density import to_density
from bottlegan.stain.macenko import plane_normal
from bottlegan.stain.quantiles import sort_last

POOL = 4096  # pixels kept of each image
HELD_OUT = 1024  # of these, which no step sees
COLOR_DIRECTIONS = 9
"""Directions along which colors are described: eight in the plane of the two stains, and one across it."""
COLOR_LEVELS = 64
"""Quantiles along each."""


@dataclass(frozen=True)
class Images:
    """A set of images and the style of each, all on one device."""

    levels: tuple[Tensor, ...]
    """Each (3, H, W) uint8; sizes may differ."""
    styles: Tensor
    """(N,) row of each image's style; all 0 for the reference set."""
    pool: Tensor
    """(N, 3, 1, POOL) in [0, 1]: random pixels of each image."""

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.levels)

    def pixels(self, rows: Tensor, count: int, random: torch.Generator) -> Tensor:
        """Return `count` random pixels of each image in `rows`, at the same places, as images (N, 3, 1, count)."""
        columns = torch.randint(POOL - HELD_OUT, (count,), generator=random)
        return self.pool[..., columns.to(self.pool.device)][rows.to(self.pool.device)]

    def held_out(self) -> Tensor:
        """Return the pixels that no step sees, as images (N, 3, 1, HELD_OUT)."""
        return self.pool[..., POOL - HELD_OUT :]

    def crops(self, rows: Tensor, size: int, random: torch.Generator) -> Tensor:
        """Return a crop of each image in `rows`, (N, 3, size, size), placed, turned and mirrored at random."""
        return torch.stack([self._crop(self.levels[row], size, random) for row in rows.tolist()])

    def _crop(self, levels: Tensor, size: int, random: torch.Generator) -> Tensor:
        height, width = levels.shape[1:]
        top, left, turns, mirror = torch.rand(4, generator=random).tolist()
        y, x = int(top * (height - size + 1)), int(left * (width - size + 1))
        crop = torch.rot90(levels[:, y : y + size, x : x + size], int(4 * turns), (1, 2))
        return from_levels(crop.flip(2) if mirror < 0.5 else crop)


def collect(groups: Mapping[str, Sequence[np.ndarray]], crop: int, seed: int, device: torch.device) -> Images:
    """Collect the uint8 images (H, W, 3) of all groups, one group per style."""
    levels, styles = [], []
    for row, (name, arrays) in enumerate(groups.items()):
        for array in arrays:
            if min(array.shape[:2]) < crop:
                size = f"{array.shape[1]} x {array.shape[0]}"
                raise InputError(
                    f"an image of {name} is {size} px, smaller than a crop of {crop} px; use larger images"
                )
            levels.append(torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1))))
            styles.append(row)
    pool = torch.stack([_draw_pool(image, seed, i) for i, image in enumerate(levels)])
    return Images(tuple(image.to(device) for image in levels), torch.tensor(styles), pool.to(device))


def _draw_pool(levels: Tensor, seed: int, index: int) -> Tensor:
    flat = levels.flatten(1)
    chosen = torch.randint(flat.shape[1], (POOL,), generator=torch_stream(seed, "pool", index))
    return from_levels(flat[:, chosen])[:, None]


class ColorProfile:
    """Describes the distribution of colors in reference-stained images, as quantiles along some directions.

    The directions lie in the plane of the two stains, where tissue differs, and across it, where it must not.
    """

    def __init__(self, stains: Tensor) -> None:
        """Build the directions from the densities (2, 3) of strong hematoxylin and eosin in the reference stain."""
        frame = torch.cat([stains, plane_normal(stains[None])[0]]).double()
        within = COLOR_DIRECTIONS - 1
        angles = torch.arange(within) * math.pi / within
        directions = torch.zeros(3, COLOR_DIRECTIONS, dtype=torch.float64)
        directions[:2, :within] = torch.stack([angles.cos(), angles.sin()])
        directions[2, within] = 1
        self.projection = (torch.linalg.inv(frame) @ directions).float()
        """(3, 9): maps densities to positions along the directions, in units of strong stain."""

    def __call__(self, images: Tensor) -> Tensor:
        """Return the profile (N, 9, COLOR_LEVELS) of images (N, 3, H, W)."""
        return self.of_density(to_density(images).flatten(2).transpose(1, 2))

    def of_density(self, density: Tensor) -> Tensor:
        """Return the profile (N, 9, COLOR_LEVELS) of densities (N, P, 3)."""
        ordered, _ = sort_last((density @ self.projection.to(density)).transpose(1, 2))
        position = (torch.arange(COLOR_LEVELS, device=density.device) + 0.5) * (ordered.shape[2] / COLOR_LEVELS) - 0.5
        low = position.floor().long().clamp(0, ordered.shape[2] - 1)
        high = (low + 1).clamp(max=ordered.shape[2] - 1)
        return torch.lerp(ordered[..., low], ordered[..., high], (position - low).clamp(0, 1))


def match_content(profiles: Tensor, references: Tensor, count: int) -> Tensor:
    """Return the rows (N, count) of the reference profiles (M, 9, COLOR_LEVELS) that are nearest to each profile.

    These images have a similar composition of tissue. Distributions of colors can only be compared between such images.
    """
    distance = torch.cdist(profiles.flatten(1), references.flatten(1), p=1)
    return distance.topk(min(count, len(references)), largest=False).indices
