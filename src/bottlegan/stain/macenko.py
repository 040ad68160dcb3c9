"""A stain estimator that does not fail: Macenko's method in closed form, made robust, for a whole batch.

Macenko et al. (2009): the optical densities of H&E tissue lie on a plane through white, between the directions of its
two stains. The plane comes from the second moments, the two directions from robust extremes of the angle within it, and
the strength of a stain from a high percentile of its concentration. Normalizing is then one affine map of densities.

What makes it robust here:

- The color without stain is estimated, not assumed to be white. Glass, lamp and scanner tint it, and an error there
  bends every angle. It lies on the plane, where both concentrations have their low quantiles. A few steps find it.
- Tissue is found relative to the image's own strength of stain, so pale and dark styles get the same mask.
- Hematoxylin is recognized by the distribution of its concentrations, compared with a reference set. No rule of color
  or angle holds in an unknown style.
- Nearly parallel stain directions fall back on the Gaussian optimal transport map between second moments.
- Blank images, and images with only one stain, are left unchanged.
- A `Diagnosis` says which of these routes was taken, why, and how well conditioned the map is.

All maps are invertible except at white. Colors off the stain plane (ink, noise) are mapped with it, not flattened.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.stain.density import fade_white, to_density, to_rgb
from bottlegan.stain.quantiles import weighted_quantile

SAMPLED_PIXELS = 16_384  # most pixels taken from an image, on a regular grid: more do not change the estimate
TISSUE_FLOOR = 0.05  # mean optical density below which nothing counts as tissue: 12 gray levels from white
TISSUE_SHARE = 0.5  # share of the median density above that floor at which a pixel counts as tissue
LEAST_TISSUE = 0.005  # an image with a smaller share of tissue is blank
ANGLE_TAILS = 0.02  # share of the stain beyond each stain direction
STRONG = 0.99  # quantile of the concentration that defines the strength of a stain
NO_STAIN = 0.02  # quantile of the concentration at which a pixel is assumed to hold none of a stain
GLASS_STEPS = 6  # the estimate of the glass no longer moves after this many
GLASS_RANGE = (-0.3, 0.6)  # densities that glass may have: below 0, the scanner clipped it to white
NEARLY_PARALLEL = 3.0  # degrees between stain directions below which they cannot be distinguished
NOISE_RATIO = 3.0  # the second principal direction must exceed the third, which holds only noise, by this factor
DARKNESS_WEIGHT = 0.06  # weight of a factor e in darkness against profile distance, when ordering the stains
NEAREST_PROFILES = 5  # number of reference images that vote on the order of the stains

PROFILE_LEVELS = torch.linspace(0.02, 0.98, 16, dtype=torch.float64)
PROFILE_DIRECTIONS = torch.tensor([[1, 0], [0, 1], [math.sqrt(0.5)] * 2, [math.sqrt(0.5), -math.sqrt(0.5)]]).double()


class Route(StrEnum):
    """How a map was found."""

    STAINS = "stains"
    TRANSPORT = "transport"
    IDENTITY = "identity"


@dataclass(frozen=True)
class Diagnosis:
    """How the map of one image was found, and how far to trust it."""

    route: Route
    reason: str
    tissue: float
    """Share of the pixels that are tissue, in [0, 1]."""
    angle: float
    """Degrees between the two stain directions."""
    condition: float
    """Condition number of the density map: 1 for the identity, large where noise is amplified."""


@dataclass(frozen=True)
class Reference:
    """Compact statistics of a reference set: everything that a fit needs, and no pixels."""

    matrix: Tensor
    """(2, 3) unit densities of hematoxylin and eosin."""
    strength: Tensor
    """(2,) density of each stain where it is strong."""
    moment: Tensor
    """(3, 3) second moment of the tissue's densities about white."""
    low: Tensor
    """(2,) relative concentration of each stain where it is absent: the residue of glass and noise."""
    profiles: Tensor
    """(R, 4, 16) quantiles of each reference image's relative concentrations along four directions."""


@dataclass(frozen=True)
class Stains:
    """The two stains of each of N images. Their order is arbitrary until `order_stains` has decided it."""

    matrix: Tensor
    """(N, 2, 3) unit densities, one row per stain."""
    strength: Tensor
    """(N, 2) density of each stain where it is strong."""
    low: Tensor
    """(N, 2) relative concentration of each stain where there is least of it."""
    profile: Tensor
    """(N, 4, 16) quantiles of the relative concentrations along four directions."""
    moment: Tensor
    """(N, 3, 3) second moment of the tissue's densities about white."""
    tissue: Tensor
    """(N,) share of the pixels that are tissue."""
    angle: Tensor
    """(N,) degrees between the stains."""
    two_stains: Tensor
    """(N,) bool: whether a second stain stands out from the noise."""

    def swapped(self, where: Tensor) -> "Stains":
        """Return a copy with the two stains exchanged in images for which `where` (N,) is true."""
        return Stains(
            torch.where(where[:, None, None], self.matrix.flip(1), self.matrix),
            torch.where(where[:, None], self.strength.flip(1), self.strength),
            torch.where(where[:, None], self.low.flip(1), self.low),
            torch.where(where[:, None, None], swap_profile(self.profile), self.profile),
            self.moment,
            self.tissue,
            self.angle,
            self.two_stains,
        )


@dataclass(frozen=True)
class DensityMap:
    """An affine map of optical densities for each of N images, and how each was found."""

    matrix: Tensor
    """(N, 3, 3), applied to row vectors of density."""
    bias: Tensor
    """(N, 3), added after it."""
    diagnoses: tuple[Diagnosis, ...]
    normalizes: bool = True
    """Whether it maps to the reference stain. If so, white is corrected, because scanners clip there."""

    def __call__(self, images: Tensor) -> Tensor:
        """Map images (N, 3, H, W) in [0, 1]. The map of a single image applies to a batch of any size."""
        density = to_density(images)
        matrix = self.matrix.to(images).expand(len(images), 3, 3)
        mapped = torch.einsum("nchw,ncd->ndhw", density, matrix) + self.bias.to(images)[:, :, None, None]
        return to_rgb(fade_white(mapped, density) if self.normalizes else mapped)

    def choose(self, rows: Tensor) -> "DensityMap":
        """Return the maps at `rows` (M,), which may repeat."""
        diagnoses = tuple(self.diagnoses[row] for row in rows.tolist())
        return replace(self, matrix=self.matrix[rows], bias=self.bias[rows], diagnoses=diagnoses)

    def inverse(self) -> "DensityMap":
        """Return the inverse maps."""
        matrix = torch.linalg.inv(self.matrix)
        return DensityMap(matrix, -(self.bias[:, None] @ matrix)[:, 0], self.diagnoses, not self.normalizes)


def join(maps: Sequence[DensityMap]) -> DensityMap:
    """Return all the maps as one batch."""
    matrix = torch.cat([torch.empty(0, 3, 3), *(part.matrix for part in maps)])
    bias = torch.cat([torch.empty(0, 3), *(part.bias for part in maps)])
    return DensityMap(matrix, bias, tuple(diagnosis for part in maps for diagnosis in part.diagnoses))


def sample_density(images: Tensor) -> Tensor:
    """Return the densities (N, P, 3), float64, of pixels on a regular grid over images (N, 3, H, W) in [0, 1]."""
    _, _, height, width = images.shape
    step = max(1, math.ceil(math.sqrt(height * width / SAMPLED_PIXELS)))
    return to_density(images[:, :, ::step, ::step].double()).flatten(2).transpose(1, 2)


def find_tissue(density: Tensor) -> Tensor:
    """Return which pixels (N, P) of the densities (N, P, 3) are tissue rather than glass."""
    darkness = density.mean(-1)
    typical = weighted_quantile(darkness, (darkness > TISSUE_FLOOR).double(), torch.tensor([0.5]))
    return darkness > (TISSUE_SHARE * typical).clamp(min=TISSUE_FLOOR)


def estimate_stains(density: Tensor) -> Stains:
    """Estimate the two stains of each image from its sampled densities (N, P, 3) above those of glass."""
    mask = find_tissue(density).double()
    tissue = density * mask[..., None]
    moment = tissue.transpose(1, 2) @ tissue / mask.sum(1).clamp(min=1)[:, None, None]
    variance, axes = torch.linalg.eigh(moment)
    # Densities are positive, so the first axis can point along them. The sign of the second does not matter.
    first = axes[..., 2] * torch.where(axes[..., 2].sum(-1, keepdim=True) < 0, -1.0, 1.0)
    plane = torch.stack([first, axes[..., 1]], dim=1)
    along, across = (density @ plane.transpose(1, 2)).unbind(-1)
    # The angle of a pale pixel is mostly noise, so each pixel is weighted by its amount of stain.
    weight = mask * along.clamp(min=0)
    tails = weighted_quantile(torch.atan2(across, along), weight, torch.tensor([ANGLE_TAILS, 1 - ANGLE_TAILS]))
    matrix = torch.stack([tails.cos(), tails.sin()], dim=-1) @ plane
    concentration = density @ torch.linalg.pinv(matrix)
    strong = [weighted_quantile(c, mask, torch.tensor([STRONG])) for c in concentration.unbind(-1)]
    strength = torch.cat(strong, dim=1).clamp(min=1e-3)
    relative = concentration / strength[:, None]
    least = [weighted_quantile(r, torch.ones_like(r), torch.tensor([NO_STAIN])) for r in relative.unbind(-1)]
    return Stains(
        matrix,
        strength,
        torch.cat(least, dim=1),
        profile(relative, mask),
        moment,
        mask.mean(1),
        torch.rad2deg(tails[:, 1] - tails[:, 0]),
        variance[:, 1] > NOISE_RATIO * variance[:, 0] + 1e-6 * variance[:, 2],
    )


def profile(relative: Tensor, mask: Tensor) -> Tensor:
    """Return the quantiles (N, 4, 16) of the tissue's relative concentrations (N, P, 2) along four directions."""
    projections = relative @ PROFILE_DIRECTIONS.T
    return torch.stack([weighted_quantile(p, mask, PROFILE_LEVELS) for p in projections.unbind(-1)], dim=1)


def swap_profile(profile: Tensor) -> Tensor:
    """Return the profile (N, 4, 16) of the same image with its two stains exchanged.

    The directions (1, 0) and (0, 1) change places, (1, 1) stays, and (1, -1) is reversed.
    """
    first, second, both, difference = profile.unbind(1)
    return torch.stack([second, first, both, -difference.flip(-1)], dim=1)


def distance_of_plane(density: Tensor) -> Tensor:
    """Return the vector (N, 1, 3) from white to the nearest point of the plane that the densities (N, P, 3) lie on."""
    mask = find_tissue(density).double()[..., None]
    count = mask.sum(1, keepdim=True).clamp(min=1)
    mean = (density * mask).sum(1, keepdim=True) / count
    centered = (density - mean) * mask
    _, axes = torch.linalg.eigh(centered.transpose(1, 2) @ centered / count)
    normal = axes[:, :, :1]
    return (mean @ normal) @ normal.transpose(1, 2)


def order_stains(stains: Stains, reference: Reference) -> Stains:
    """Put hematoxylin first.

    Hematoxylin is sparse and peaked (nuclei); eosin is everywhere. The order wins whose profile is nearer to the most
    similar reference images. These show similar tissue, so composition does not decide. In tissue full of nuclei both
    orders look alike; what decides there is that hematoxylin is the darker stain where both are strong.
    """
    exchanged = stains.swapped(torch.ones_like(stains.two_stains))
    cost, other_cost = (order_cost(candidate, reference) for candidate in (stains, exchanged))
    return stains.swapped(other_cost < cost)


def order_cost(stains: Stains, reference: Reference) -> Tensor:
    """Return how much (N,) the stains differ from the reference set if the first is hematoxylin, the second eosin."""
    contrast = darkness_contrast(stains.matrix, stains.strength)
    usual = darkness_contrast(reference.matrix, reference.strength)
    return distance_to_profiles(stains.profile, reference.profiles) + DARKNESS_WEIGHT * (contrast - usual).abs()


def darkness_contrast(matrix: Tensor, strength: Tensor) -> Tensor:
    """Return the logarithm (..., ) of how much darker the first stain is than the second where both are strong."""
    dark, light = (matrix.sum(-1).clamp(min=1e-3) * strength).unbind(-1)
    return dark.log() - light.log()


def distance_to_profiles(profile: Tensor, references: Tensor) -> Tensor:
    """Return the mean distance (N,) of profiles (N, 4, 16) to the nearest few `references` (R, 4, 16)."""
    distance = torch.cdist(profile.flatten(1), references.flatten(1), p=1) / references[0].numel()
    return distance.topk(min(NEAREST_PROFILES, len(references)), largest=False).values.mean(1)


def summarize_reference(batches: Sequence[Tensor]) -> Reference:
    """Return the statistics of a reference set from its batches of images (N, 3, H, W) in [0, 1].

    The reference stain has the usual colors, so hematoxylin is the stain that absorbs more red.
    """
    parts = [estimate_stains(sample_density(batch)) for batch in batches]
    parts = [part.swapped(part.matrix[:, 0, 0] < part.matrix[:, 1, 0]) for part in parts]
    usable = [(p.tissue >= LEAST_TISSUE) & p.two_stains & (p.angle >= NEARLY_PARALLEL) for p in parts]
    if not any(bool(u.any()) for u in usable):
        raise InputError("no reference image shows tissue in two stains; give H&E images in the reference stain")

    def gather(values: list[Tensor]) -> Tensor:
        return torch.cat([v[u] for v, u in zip(values, usable, strict=True)])

    matrix = gather([p.matrix for p in parts]).median(0).values
    weight = gather([p.tissue for p in parts])[:, None, None]
    return Reference(
        matrix / matrix.norm(dim=1, keepdim=True),
        gather([p.strength for p in parts]).median(0).values,
        (gather([p.moment for p in parts]) * weight).sum(0) / weight.sum(),
        gather([p.low for p in parts]).median(0).values,
        gather([p.profile for p in parts]),
    )


def fit_density_map(density: Tensor, reference: Reference) -> DensityMap:
    """Fit the map from each image's style to the reference stain, from N sets of sampled densities (N, P, 3).

    To fit one map to several images of a lab, concatenate their samples to (1, P, 3).
    """
    stains, glass = find_glass(density, reference)
    blank = stains.tissue < LEAST_TISSUE
    parallel = stains.angle < NEARLY_PARALLEL
    keep = blank | ~stains.two_stains
    matrix = torch.where(parallel[:, None, None], transport_map(stains, reference), stain_map(stains, reference))
    matrix = torch.where(keep[:, None, None], torch.eye(3, dtype=matrix.dtype), matrix)
    condition = torch.linalg.cond(matrix)
    diagnoses = [
        Diagnosis(*_route(bool(blank[i]), bool(keep[i]), bool(parallel[i])), *(float(v[i]) for v in values))
        for values in [(stains.tissue, stains.angle, condition)]
        for i in range(len(density))
    ]
    return DensityMap(matrix, -(glass @ matrix)[:, 0], tuple(diagnoses))


def find_glass(density: Tensor, reference: Reference) -> tuple[Stains, Tensor]:
    """Find the density (N, 1, 3) of each image (N, P, 3) without stain, and its ordered stains above that density.

    Each stain is nearly absent somewhere in an image. The glass moves until the stain is as absent there as in the
    reference set. Images without two stains keep white glass.
    """
    glass = distance_of_plane(density)
    stains = order_stains(estimate_stains(density - glass), reference)
    for _ in range(GLASS_STEPS):
        clear = stains.two_stains & (stains.tissue >= LEAST_TISSUE) & (stains.angle >= NEARLY_PARALLEL)
        excess = (stains.low - reference.low) * stains.strength * clear[:, None]
        glass = (glass + excess[:, None] @ stains.matrix).clamp(*GLASS_RANGE)
        stains = order_stains(estimate_stains(density - glass), reference)
    usable = stains.two_stains & (stains.tissue >= LEAST_TISSUE)
    return stains, torch.where(usable[:, None, None], glass, 0)


def _route(blank: bool, keep: bool, parallel: bool) -> tuple[Route, str]:
    if blank:
        return Route.IDENTITY, "no tissue found, so the image is left unchanged"
    if keep:
        return Route.IDENTITY, "only one stain found, so the image is left unchanged"
    if parallel:
        return Route.TRANSPORT, "the two stains have nearly the same color, so only their overall spread is matched"
    return Route.STAINS, "two stains found"


def stain_map(stains: Stains, reference: Reference) -> Tensor:
    """Return the maps (N, 3, 3) of each image's two stains, and their plane's normal, to those of the reference."""
    source = torch.cat([stains.matrix * stains.strength[..., None], plane_normal(stains.matrix)], dim=1)
    target = torch.cat([reference.matrix * reference.strength[:, None], plane_normal(reference.matrix[None])[0]])
    # Parallel stains give a singular matrix. Their map is not used, so any finite one will do.
    return torch.linalg.pinv(source) @ target


def plane_normal(matrix: Tensor) -> Tensor:
    """Return the unit vectors (N, 1, 3) normal to the stain planes of (N, 2, 3)."""
    normal = torch.linalg.cross(matrix[:, :1], matrix[:, 1:])
    return normal / normal.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def transport_map(stains: Stains, reference: Reference) -> Tensor:
    """Return the optimal transport maps (N, 3, 3) between Gaussians around white with these second moments.

    A = S^-1/2 (S^1/2 R S^1/2)^1/2 S^-1/2 for the image's moment S and the reference's R. Moments are about white, not
    about the mean, so white stays white whatever the share of background.
    """
    ridge = 1e-4 * stains.moment.diagonal(dim1=1, dim2=2).sum(-1).clamp(min=1e-6)
    moment = stains.moment + ridge[:, None, None] * torch.eye(3, dtype=stains.moment.dtype)
    root, inverse_root = _power(moment, 0.5), _power(moment, -0.5)
    return inverse_root @ _power(root @ reference.moment @ root, 0.5) @ inverse_root


def _power(matrix: Tensor, exponent: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag_embed(values.clamp(min=1e-12) ** exponent) @ vectors.transpose(1, 2)
