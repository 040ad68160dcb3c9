"""Onboarding: fit the style code of an unseen lab to a few of its images, unlabeled, unpaired, the network frozen.

Nothing is searched or iterated: the encoders, which have seen thousands of simulated labs, look at pixels of the images
and say what maps their style needs and how far off they expect to be. The maps are written as a code.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from bottlegan.core.errors import InputError
from bottlegan.data.lab import MOST_IMAGES, spread
from bottlegan.imaging.files import Pixels
from bottlegan.models.code_maps import encode_maps, read_reference
from bottlegan.models.document import PRIOR
from bottlegan.models.encoder import MOST_VEIL, Look, Sight, sigmoid
from bottlegan.models.encoders import Encoders, find_glass_together, look_together
from bottlegan.models.pixel_sets import PixelSet, look_at
from bottlegan.models.weights import ModelWeights, read_weights
from bottlegan.onboarding.settle import settle
from bottlegan.onboarding.verdict import MOST_GRAIN, StyleDiagnosis, diagnose
from bottlegan.stain.affine import AffineMap, StyleMaps

Floats = NDArray[np.float32]

MOST_TISSUE = 4096
"""Pixels of tissue that the encoders look at: more of them take longer, and no longer change what they say."""
LEAST_GLASS = 0.0005
"""Share of the pixels that must show glass for it to be an anchor: some two dozen of them."""


@dataclass(frozen=True)
class Onboarding:
    """A new style: all that a lab need share, and how far to trust it."""

    code: Floats
    """(K,) the style code."""
    diagnosis: StyleDiagnosis


def onboard(images: Sequence[Pixels], model: ModelWeights) -> Onboarding:
    """Fit a style code to RGB levels (H, W, 3) of one lab; the same images give the same code, in any order."""
    reference = read_reference(model.arrays["reference.stains"], model.arrays["reference.maps"])
    maps, diagnosis = find_maps(images, find_encoders(model))
    return Onboarding(encode_maps(model, maps.relative_to(reference))[0], diagnosis)


def find_encoders(model: ModelWeights) -> Encoders:
    """Return the model's own encoders or, if it has none, those of the prior shipped in the package."""
    return model.encoders or shipped_encoders()


@cache
def shipped_encoders() -> Encoders:
    """Return the encoders of the prior shipped in the package."""
    encoders = read_weights(PRIOR).encoders
    if not encoders:
        raise InputError(f"{PRIOR}: has no encoder; install bottlegan again")
    return encoders


@dataclass(frozen=True)
class LabLook:
    """What the encoders say of one lab, and what they were shown."""

    pixels: PixelSet
    """Of all images."""
    glass: float
    """Share of these that show bare glass, in [0, 1]."""
    sight: Sight
    look: Look
    white: Floats
    """(1, 3) density of normalized glass."""
    expected_error: float
    """Of the maps, in levels of 255."""

    @property
    def tissue(self) -> Floats:
        """The densities (P, 3) of pixels of tissue."""
        return self.sight.density[0, :, 0]


def look_at_lab(images: Sequence[Pixels], encoders: Encoders) -> LabLook:
    """Return what the encoders say of some images of a lab."""
    if not images:
        raise InputError("there is no image to fit a style to; give at least one of the lab")
    pixels = look_at(spread(images, MOST_IMAGES))
    is_glass = find_glass_together(encoders, pixels.density[None], pixels.roughness[None])[0] > 0
    sight = see(pixels, is_glass)
    look = look_together(encoders, sight)
    white = look.maps.normalize(sight.glass[:, None])[:, 0] if sight.sees_glass.all() else np.zeros((1, 3), np.float32)
    expected_error = 255 * float(np.exp(look.log_errors).mean())
    return LabLook(pixels, float(is_glass.mean()), sight, look, white, expected_error)


def find_maps(images: Sequence[Pixels], encoders: Encoders) -> tuple[StyleMaps, StyleDiagnosis]:
    """Return the maps between the style of some images and the encoders' reference stain, and what to think of them."""
    lab = look_at_lab(images, encoders)
    maps = settle(
        lab.look.maps,
        lab.tissue,
        lab.look.nuclear[0],
        basis=encoders[0]["basis"],
        white=lab.white,
        expected_error=lab.expected_error,
    )
    center = lab.sight.glass if lab.sight.sees_glass.all() else lab.sight.density[:, :, 0].mean(1)
    normalize = limit_grain(keep_white(maps.normalize, center), center, lab.sight.density[0])
    diagnosis = diagnose(
        tissue=1 - lab.glass,
        contrast=measure_contrast(lab.pixels),
        darkness=float(np.median(lab.pixels.density[:, 0].mean(1))),
        is_he=float(sigmoid(lab.look.is_he)[0]),
        expected_error=lab.expected_error,
        gain=measure_gain(normalize),
    )
    return StyleMaps(normalize, maps.restain), diagnosis


def see(pixels: PixelSet, is_glass: NDArray[np.bool_]) -> Sight:
    """Return what encoders are given of one lab: tissue, as much of each image, and the middle of the glass."""
    sees_glass = is_glass.sum() >= max(4, LEAST_GLASS * len(pixels))
    glass = np.median(pixels.density[is_glass, 0], axis=0) if sees_glass else np.zeros(3)
    # Where all is glass, it is looked at all the same: the verdict says what to think of it.
    tissue = pixels.choose(choose_tissue(pixels, ~is_glass if not is_glass.all() else is_glass))
    return Sight(
        tissue.density[None],
        tissue.roughness[None],
        np.ones((1, len(tissue)), np.bool_),
        glass.astype(np.float32)[None],
        np.array([bool(sees_glass)]),
    )


def choose_tissue(pixels: PixelSet, is_tissue: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return rows of tissue pixels at even distances, at most as many of each image as are its share."""
    images = np.unique(pixels.image)
    share = max(1, MOST_TISSUE // len(images))
    rows = [np.flatnonzero(is_tissue & (pixels.image == image)) for image in images]
    return np.concatenate([found[:: max(1, -(-len(found) // share))] for found in rows])


def measure_contrast(pixels: PixelSet) -> float:
    """Return the mean density between the brightest and the darkest boxes of 7 px, in which noise averages out."""
    low, high = np.quantile(pixels.density[:, 1].mean(1), [0.01, 0.995])
    return float(high - low)


def measure_gain(normalize: AffineMap) -> float:
    """Return how much noise a map adds: the root mean square of what it makes of white noise, over that."""
    return math.sqrt(float((normalize.matrix[0] ** 2).sum()) / 3)


def keep_white(normalize: AffineMap, center: Floats) -> AffineMap:
    """Return a map that does not stain pure white; what becomes of `center` (1, 3) stays.

    No glass is brighter than white. A map that was not anchored, because no glass was seen, must not say so either.
    """
    excess = np.maximum(normalize.bias - MOST_VEIL, 0)
    along = center / max(float((center**2).sum()), 1e-6)
    return AffineMap(normalize.matrix + along[:, :, None] * excess[:, None], normalize.bias - excess)


def measure_grain(normalize: AffineMap, tissue: Floats) -> Floats:
    """Return the grain (3,) of tissue, (P, VIEWS, 3) densities, in the directions in which a map stretches it."""
    left, values, _ = np.linalg.svd(normalize.matrix[0])
    fine = (tissue[:, 0] - tissue[:, 1]) @ left
    return np.asarray(values * np.sqrt(np.mean(fine**2, axis=0)))


def limit_grain(normalize: AffineMap, center: Floats, tissue: Floats) -> AffineMap:
    """Return a map that makes no direction of color grainier than `MOST_GRAIN`; what becomes of `center` (1, 3) stays.

    Two stains that look nearly alike need a large gain to be told apart. That does no harm in a clean image, and turns
    noise into colored speckle in another. So what limits the gain is the grain of `tissue`, (P, VIEWS, 3) densities:
    how far pixels are from the mean of those around them.
    """
    left, values, right = np.linalg.svd(normalize.matrix)
    factors = np.minimum(1, MOST_GRAIN / np.maximum(measure_grain(normalize, tissue), 1e-9))
    matrix = (left * (values * factors)[:, None]) @ right
    return AffineMap(matrix, normalize(center[:, None])[:, 0] - (center[:, None] @ matrix)[:, 0])
