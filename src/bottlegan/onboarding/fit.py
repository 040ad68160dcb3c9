"""Onboarding: fit the style code of an unseen lab to a few of its images, unlabeled, unpaired, the network frozen.

Nothing is searched or iterated: the encoder, which has seen thousands of simulated labs, looks at pixels of the images
and says what maps their style needs and how far off it expects to be. The maps are written as a code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from bottlegan.data.lab import MOST_IMAGES, spread
from bottlegan.errors import InputError
from bottlegan.imaging.files import Levels
from bottlegan.models.code_maps import encode_maps
from bottlegan.models.encoder import MOST_VEIL, Sight, StyleEncoder
from bottlegan.models.files import PRIOR
from bottlegan.models.paradigms import BottleGAN
from bottlegan.models.pixel_sets import PixelSet, look_at
from bottlegan.models.reference_stain import ReferenceStain
from bottlegan.onboarding.verdict import MOST_GAIN, StyleDiagnosis, diagnose
from bottlegan.progress import Progress, Silent
from bottlegan.stain.affine import AffineMap, StyleMaps, join_maps

MOST_TISSUE = 4096
"""Pixels of tissue that the encoder looks at: more of them take longer, and no longer change what it says."""
LEAST_GLASS = 0.0005
"""Share of the pixels that must show glass for it to be an anchor: some two dozen of them."""


@dataclass(frozen=True)
class Onboarding:
    """A new style: all that a lab need share, and how far to trust it."""

    code: Tensor
    """(K,) the style code."""
    diagnosis: StyleDiagnosis


def onboard(images: Sequence[Levels], model: BottleGAN) -> Onboarding:
    """Fit a style code to RGB levels (H, W, 3) of one lab; the same images give the same code, in any order."""
    reference = model.reference.style_maps()
    maps, diagnosis = find_maps(images, find_encoder(model))
    with torch.no_grad():
        return Onboarding(encode_maps(model, maps.relative_to(reference))[0], diagnosis)


def onboard_all(
    labs: Mapping[str, Sequence[Levels]], reference: ReferenceStain, progress: Progress | None = None
) -> StyleMaps:
    """Return the maps of several labs, given as RGB levels (H, W, 3) by name, to and from a reference stain."""
    encoder, stain = shipped_encoder(), reference.cpu().style_maps()
    tracked = (progress or Silent()).track(labs.values(), "onboarding labs", len(labs))
    found = [find_maps(images, encoder)[0].relative_to(stain) for images in tracked]
    return StyleMaps(*(join_maps([maps[way] for maps in found]) for way in (0, 1)))


def describe_reference(images: Sequence[Levels]) -> ReferenceStain:
    """Return the stain of a reference set, given as RGB levels (H, W, 3), by onboarding it as a lab."""
    encoder = shipped_encoder()
    maps, _ = find_maps(images, encoder)
    return ReferenceStain.of(encoder.basis[:2] @ maps.restain.matrix[0], maps)


def find_encoder(model: BottleGAN) -> StyleEncoder:
    """Return the model's own encoder or, if it has none, the one of the prior shipped in the package."""
    return shipped_encoder() if model.encoder is None else model.encoder


@cache
def shipped_encoder() -> StyleEncoder:
    """Return the encoder of the prior shipped in the package."""
    encoder = BottleGAN.load(PRIOR).encoder
    if encoder is None:
        raise InputError(f"{PRIOR}: has no encoder; install bottlegan again")
    return encoder


@torch.no_grad()
def find_maps(images: Sequence[Levels], encoder: StyleEncoder) -> tuple[StyleMaps, StyleDiagnosis]:
    """Return the maps between the style of some images and the encoder's reference stain, and what to think of them."""
    if not images:
        raise InputError("there is no image to fit a style to; give at least one of the lab")
    pixels = look_at(spread(images, MOST_IMAGES))
    is_glass = find_glass(pixels, encoder)
    sight = see(pixels, is_glass)
    look = encoder(sight)[-1]
    center = sight.glass if bool(sight.sees_glass) else sight.density[:, :, 0].mean(1)
    normalize = limit_gain(keep_white(look.maps.normalize, center), center)
    diagnosis = diagnose(
        tissue=1 - float(is_glass.mean()),
        contrast=measure_contrast(pixels),
        darkness=float(np.median(pixels.density[:, 0].mean(1))),
        is_he=torch.sigmoid(look.is_he).item(),
        expected_error=255 * float(look.log_errors.exp().mean()),
        gain=measure_gain(normalize),
    )
    return StyleMaps(normalize, look.maps.restain), diagnosis


def find_glass(pixels: PixelSet, encoder: StyleEncoder) -> np.ndarray:
    """Return which pixels (P,) show bare glass."""
    density, roughness = torch.from_numpy(pixels.density), torch.from_numpy(pixels.roughness)
    return (encoder.finder(density[None], roughness[None])[0] > 0).numpy()


def see(pixels: PixelSet, is_glass: np.ndarray) -> Sight:
    """Return what the encoder is given of one lab: tissue, as much of each image, and the middle of the glass."""
    sees_glass = is_glass.sum() >= max(4, LEAST_GLASS * len(pixels))
    glass = np.median(pixels.density[is_glass, 0], axis=0) if sees_glass else np.zeros(3)
    # Where all is glass, it is looked at all the same: the verdict says what to think of it.
    tissue = pixels.choose(choose_tissue(pixels, ~is_glass if not is_glass.all() else is_glass))
    return Sight(
        torch.from_numpy(tissue.density)[None],
        torch.from_numpy(tissue.roughness)[None],
        torch.ones(1, len(tissue), dtype=torch.bool),
        torch.from_numpy(glass.astype(np.float32))[None],
        torch.tensor([bool(sees_glass)]),
    )


def choose_tissue(pixels: PixelSet, is_tissue: np.ndarray) -> np.ndarray:
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
    return float((normalize.matrix[0].square().sum() / 3).sqrt())


def keep_white(normalize: AffineMap, center: Tensor) -> AffineMap:
    """Return a map that does not stain pure white; what becomes of `center` (1, 3) stays.

    No glass is brighter than white. A map that was not anchored, because no glass was seen, must not say so either.
    """
    excess = (normalize.bias - MOST_VEIL).clamp(min=0)
    along = center / center.square().sum().clamp(min=1e-6)
    return AffineMap(normalize.matrix + along[:, :, None] * excess[:, None], normalize.bias - excess)


def limit_gain(normalize: AffineMap, center: Tensor) -> AffineMap:
    """Return a map that amplifies no direction by more than `MOST_GAIN`; what becomes of `center` (1, 3) stays."""
    left, values, right = torch.linalg.svd(normalize.matrix)
    matrix = left @ torch.diag_embed(values.clamp(max=MOST_GAIN)) @ right
    return AffineMap(matrix, normalize(center[:, None])[:, 0] - (center[:, None] @ matrix)[:, 0])
