"""Onboarding: fit the style code of an unseen lab to a few of its images, unlabeled, unpaired, the network frozen.

Nothing is searched or iterated: the encoder, which has seen thousands of simulated labs, looks at pixels of the images
and says what maps their style needs and how far off it expects to be. The maps are written as a code.
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
from bottlegan.models.encoder import MOST_VEIL, EncoderWeights, Look, Sight, find_glass, look, sigmoid
from bottlegan.models.pixel_sets import PixelSet, look_at
from bottlegan.models.weights import ModelWeights, read_weights
from bottlegan.onboarding.settle import settle
from bottlegan.onboarding.verdict import MOST_GAIN, StyleDiagnosis, diagnose
from bottlegan.stain.affine import AffineMap, StyleMaps

Floats = NDArray[np.float32]

MOST_TISSUE = 4096
"""Pixels of tissue that the encoder looks at: more of them take longer, and no longer change what it says."""
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
    maps, diagnosis = find_maps(images, find_encoder(model))
    return Onboarding(encode_maps(model, maps.relative_to(reference))[0], diagnosis)


def find_encoder(model: ModelWeights) -> EncoderWeights:
    """Return the model's own encoder or, if it has none, the one of the prior shipped in the package."""
    return model.part("encoder.") or shipped_encoder()


@cache
def shipped_encoder() -> EncoderWeights:
    """Return the encoder of the prior shipped in the package."""
    encoder = read_weights(PRIOR).part("encoder.")
    if not encoder:
        raise InputError(f"{PRIOR}: has no encoder; install bottlegan again")
    return encoder


@dataclass(frozen=True)
class LabLook:
    """What the encoder says of one lab, and what it was shown."""

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


def look_at_lab(images: Sequence[Pixels], encoder: EncoderWeights) -> LabLook:
    """Return what the encoder says of some images of a lab."""
    if not images:
        raise InputError("there is no image to fit a style to; give at least one of the lab")
    pixels = look_at(spread(images, MOST_IMAGES))
    is_glass = find_glass(encoder, pixels.density[None], pixels.roughness[None])[0] > 0
    sight = see(pixels, is_glass)
    last = look(encoder, sight)[-1]
    white = last.maps.normalize(sight.glass[:, None])[:, 0] if sight.sees_glass.all() else np.zeros((1, 3), np.float32)
    return LabLook(pixels, float(is_glass.mean()), sight, last, white, 255 * float(np.exp(last.log_errors).mean()))


def find_maps(images: Sequence[Pixels], encoder: EncoderWeights) -> tuple[StyleMaps, StyleDiagnosis]:
    """Return the maps between the style of some images and the encoder's reference stain, and what to think of them."""
    lab = look_at_lab(images, encoder)
    maps = settle(
        lab.look.maps,
        lab.tissue,
        lab.look.nuclear[0],
        basis=encoder["basis"],
        white=lab.white,
        expected_error=lab.expected_error,
    )
    center = lab.sight.glass if lab.sight.sees_glass.all() else lab.sight.density[:, :, 0].mean(1)
    normalize = limit_gain(keep_white(maps.normalize, center), center)
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
    """Return what the encoder is given of one lab: tissue, as much of each image, and the middle of the glass."""
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


def limit_gain(normalize: AffineMap, center: Floats) -> AffineMap:
    """Return a map that amplifies no direction by more than `MOST_GAIN`; what becomes of `center` (1, 3) stays."""
    left, values, right = np.linalg.svd(normalize.matrix)
    matrix = (left * np.minimum(values, MOST_GAIN)[:, None]) @ right
    return AffineMap(matrix, normalize(center[:, None])[:, 0] - (center[:, None] @ matrix)[:, 0])
