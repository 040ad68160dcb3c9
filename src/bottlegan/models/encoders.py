"""Several encoders that look at the same lab, and what they conclude together.

Each was trained on labs of its own, so each errs in its own way, and the mean of their maps errs less than any of them.
How far they are apart shows what none of them can know of itself. So it counts as part of the expected error.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bottlegan.models.encoder import EncoderWeights, Look, Sight, find_glass, look
from bottlegan.stain.affine import AffineMap, StyleMaps

Encoders = tuple[EncoderWeights, ...]
Floats = NDArray[np.float32]


def look_together(encoders: Encoders, sight: Sight) -> Look:
    """Return the mean of all encoders' last looks; how far these are apart is added to their expected errors."""
    looks = [look(weights, sight)[-1] for weights in encoders]
    maps = StyleMaps(*(average_maps([each.maps[way] for each in looks]) for way in (0, 1)))
    tissue = sight.density[:, :, 0]
    apart = [
        measure_variance([each.maps[way] for each in looks], density, sight.is_tissue)
        for way, density in enumerate((tissue, maps.normalize(tissue)))
    ]
    squares = np.mean([np.exp(2 * each.log_errors) for each in looks], axis=0) + np.stack(apart, axis=1)
    amounts, nuclear = (np.mean([getattr(each, name) for each in looks], axis=0) for name in ("amounts", "nuclear"))
    return Look(maps, 0.5 * np.log(squares), agree_on_he([each.is_he for each in looks]), amounts, nuclear)


def agree_on_he(logits: Sequence[Floats]) -> Floats:
    """Return the mean of several logits (B,) of whether this is H&E; below even odds only where all of them are."""
    mean = np.mean(logits, axis=0)
    return np.asarray(np.where(np.max(logits, axis=0) < 0, mean, np.maximum(mean, 0)))


def find_glass_together(encoders: Encoders, density: Floats, roughness: Floats) -> Floats:
    """Return the mean of all encoders' logits (B, P) of which pixels are bare glass: see `encoder.find_glass`."""
    return np.asarray(np.mean([find_glass(weights, density, roughness) for weights in encoders], axis=0))


def average_maps(maps: Sequence[AffineMap]) -> AffineMap:
    """Return the mean of affine maps."""
    return AffineMap(*(np.mean(parts, axis=0) for parts in zip(*maps, strict=True)))


def measure_variance(maps: Sequence[AffineMap], density: Floats, counts: NDArray[np.bool_]) -> Floats:
    """Return the variance (B,) of what maps make of densities (B, P, 3), as intensities of pixels that count (B, P)."""
    images = np.stack([np.exp(-np.clip(each(density), 0, None)) for each in maps])
    variance = np.where(counts, images.var(axis=0).mean(axis=2), 0)
    return np.asarray(variance.sum(axis=1) / np.maximum(counts.sum(axis=1), 1))
