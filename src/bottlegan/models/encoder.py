"""The encoder of onboarding: a set of pixels of one lab -> the affine maps of its style, and how far off they may be.

It does not guess the maps. For each pixel it reads how much hematoxylin and eosin the reference stain would have there,
by the pixel's color, its surroundings and how the colors of all pixels are distributed. With these amounts beside the
densities the maps follow by least squares, one for each direction: errors of single pixels average out.

It looks twice. The first look begins with amounts as a closed form guesses them, the second with what the first made of
them, where labs look nearly alike and small errors show.

Where glass is seen, both maps are anchored there: it comes out white, or nearly so, whatever the looks say.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bottlegan.models.pixel_sets import VIEWS
from bottlegan.stain.affine import AffineMap, StyleMaps
from bottlegan.stain.quantiles import weighted_quantile

LEVELS = (0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99)
"""Quantiles by which a set is described."""
DIRECTIONS = ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, -1, 0), (1, -0.3, 0), (-0.3, 1, 0))
"""Along these, of hematoxylin, eosin and what is neither."""
OPINIONS = 4
"""How far off either map may be, how much of glass is stain, and whether this is H&E."""
FURTHER_LOOKS = 1
RIDGE = 1e-3
"""By which amounts of stain must spread, squared, for a map to follow them."""
LEAST_SCALE = 0.02
"""Smallest range of densities that is scaled to 1."""
TAIL, STRONG, LEAST_ANGLE = 0.02, 0.97, math.radians(4)
"""Of the first guess: the share of stain beyond its two directions, the quantile of an amount that is strong, and half
the smallest angle between the two."""
MOST_VEIL = 0.06
"""Largest density of glass after normalization, that of the reference set's: in some labs it holds a trace of stain."""


class Look(NamedTuple):
    """What the encoder thinks after one look."""

    maps: StyleMaps
    log_errors: Tensor
    """(B, 2) logarithm of the expected root mean square error of normalizing and of restaining, in [0, 1]."""
    is_he: Tensor
    """(B,) logit of whether this is H&E."""
    amounts: Tensor
    """(B, P, 3) of stain that were read in each pixel."""


class Sight(NamedTuple):
    """What the encoder is given: pixels of B labs, and their glass."""

    density: Tensor
    """(B, P, VIEWS, 3)."""
    roughness: Tensor
    """(B, P)."""
    is_tissue: Tensor
    """(B, P) bool: which pixels count."""
    glass: Tensor
    """(B, 3) density of the glass; 0 where none is seen."""
    sees_glass: Tensor
    """(B,) bool."""


class Reader(nn.Module):
    """Reads amounts of stain in a set of pixels: guesses of the amounts in, better ones out, for each pixel.

    A pixel is read by what it is and what surrounds it, beside what all pixels together say. That does not depend on
    their order or number.
    """

    def __init__(self, features: int, summary: int, width: int) -> None:
        """Begin with the guesses as they are."""
        super().__init__()
        self.pixel = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.whole = nn.Sequential(
            nn.Linear(2 * width + summary, 2 * width), nn.ReLU(), nn.Linear(2 * width, 2 * width), nn.ReLU()
        )
        self.opinion = nn.Linear(2 * width, OPINIONS)
        self.change = nn.Linear(2 * width, 12)
        self.context = nn.Linear(2 * width, width)
        self.mixed = nn.Linear(width, width)
        self.hidden = nn.Linear(width, width)
        self.amounts = nn.Linear(width, 4)
        for layer in (self.opinion, self.change, self.amounts):
            nn.init.normal_(layer.weight, std=1e-3)
            nn.init.zeros_(layer.bias)

    def forward(self, pixels: Tensor, guesses: Tensor, counts: Tensor, summary: Tensor) -> tuple[Tensor, ...]:
        """Return amounts (B, P, 3), how much each pixel is to count (B, P), and opinions (B, OPINIONS) on the whole.

        Args:
            pixels: (B, P, features) what each pixel is, and what surrounds it.
            guesses: (B, P, 3) of its amounts.
            counts: (B, P) bool: which pixels count.
            summary: (B, summary) how they are distributed.
        """
        features = self.pixel(pixels)
        share = (counts.to(features) / counts.sum(1, keepdim=True).clamp(min=1))[:, None]
        mean, square = (share @ features)[:, 0], (share @ features.square())[:, 0]
        whole = self.whole(torch.cat([mean, (square + 1e-6).sqrt(), summary], dim=1))
        mixed = F.relu(self.mixed(features) + self.context(whole)[:, None])
        read = self.amounts(F.relu(self.hidden(mixed)))
        change, shift = self.change(whole).split([9, 3], dim=1)
        moved = guesses + guesses @ change.reshape(-1, 3, 3) + shift[:, None]
        weight = counts.to(features) * torch.sigmoid(read[..., 3])
        return moved + read[..., :3], weight, self.opinion(whole)


class GlassFinder(nn.Module):
    """Tells glass from pale tissue, pixel by pixel: by how bright, how flat, and how alone it is."""

    def __init__(self, width: int = 32) -> None:
        """Build it."""
        super().__init__()
        features = 3 * VIEWS + 1 + 3 + 1 + 3 + 1
        self.layers = nn.Sequential(
            nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, density: Tensor, roughness: Tensor) -> Tensor:
        """Return the logits (B, P) of pixels (B, P, VIEWS, 3) and (B, P) of all that the labs show."""
        own = density[:, :, 0]
        low = quantiles(own, torch.ones_like(roughness, dtype=torch.bool), (0.005,))[:, :, 0]
        above = (own - low[:, None]).mean(2, keepdim=True)
        contrast = quantiles(above, torch.ones_like(roughness, dtype=torch.bool), (0.99,))[:, 0, 0].clamp(min=0.05)
        relative = (density - low[:, None, None]) / contrast[:, None, None, None]
        everywhere = torch.cat([low, contrast[:, None]], dim=1)[:, None].expand(-1, own.shape[1], -1)
        features = [
            relative.flatten(2),
            (roughness / contrast[:, None])[..., None],
            4 * own,
            20 * roughness[..., None],
            everywhere,
        ]
        return self.layers(torch.cat(features, dim=2))[..., 0]


class StyleEncoder(nn.Module):
    """From pixels of a lab to the maps of its style."""

    basis: Tensor
    """(3, 3): densities of strong hematoxylin, of strong eosin, and of what is neither."""

    def __init__(self, stains: Tensor, width: int = 64) -> None:
        """Build it for a reference stain whose strong hematoxylin and eosin have the densities (2, 3)."""
        super().__init__()
        self.width = width
        normal = torch.linalg.cross(stains[0], stains[1])
        self.register_buffer("basis", torch.cat([stains, 0.5 * normal[None] / normal.norm()]).float())
        self.finder = GlassFinder()
        described = len(DIRECTIONS) * len(LEVELS)
        self.first = Reader(6 * VIEWS + 1, described + 3 * len(LEVELS) + 21, width)
        self.further = Reader(3 * VIEWS + 1, described + 3, width)

    def forward(self, sight: Sight) -> list[Look]:
        """Return what the encoder thinks after each look; the last is the best."""
        looks = [self._look_first(sight)]
        for _ in range(FURTHER_LOOKS):
            looks.append(self._look_again(sight, looks[-1]))
        return looks

    def _look_first(self, sight: Sight) -> Look:
        own, counts = sight.density[:, :, 0], sight.is_tissue
        seen = sight.sees_glass[:, None]
        low, high = quantiles(own, counts, (0.01, 0.95)).unbind(2)
        low = torch.where(seen, sight.glass, low)
        scale = (high - low).clamp(min=LEAST_SCALE)
        frame, spread = find_frame(own - low[:, None], counts)
        inverse = torch.linalg.inv(frame)
        start = AffineMap(inverse, -(low[:, None] @ inverse)[:, 0])
        amounts = start(sight.density.flatten(1, 2)).reshape(*counts.shape, 3 * VIEWS)
        scaled = (sight.density - low[:, None, None]) / scale[:, None, None]
        lengths = frame.norm(dim=2)
        summary = [
            describe(amounts, counts),
            quantiles(scaled[:, :, 0], counts, LEVELS).flatten(1),
            (frame / lengths[:, :, None]).flatten(1),
            lengths[:, :2].log(),
            spread,
            low,
            scale.log(),
            seen.to(scale),
        ]
        pixels = [amounts, scaled.flatten(2), (sight.roughness / scale.mean(1, keepdim=True))[..., None]]
        read = self.first(torch.cat(pixels, dim=2), amounts[..., :3], counts, torch.cat(summary, dim=1))
        return self._conclude(sight, start, amounts[..., :3], read)

    def _look_again(self, sight: Sight, before: Look) -> Look:
        start = before.maps.normalize.then(
            AffineMap(torch.linalg.inv(self.basis)[None], torch.zeros(1, 3).to(self.basis))
        )
        amounts = start(sight.density.flatten(1, 2)).reshape(*sight.roughness.shape, 3 * VIEWS)
        gain = before.maps.normalize.matrix.square().mean((1, 2)).sqrt()[:, None]
        summary = [
            describe(amounts, sight.is_tissue),
            sight.sees_glass[:, None].to(amounts),
            gain.log(),
            sight.glass.mean(1, keepdim=True),
        ]
        pixels = torch.cat([amounts, (sight.roughness * gain)[..., None]], dim=2)
        read = self.further(pixels, amounts[..., :3], sight.is_tissue, torch.cat(summary, dim=1))
        return self._conclude(sight, start, amounts[..., :3], read)

    def _conclude(self, sight: Sight, start: AffineMap, guesses: Tensor, read: tuple[Tensor, ...]) -> Look:
        """Return the maps that fit best between the guesses that `start` makes and the amounts that were read."""
        amounts, weight, opinions = read
        to_density = AffineMap(self.basis[None], torch.zeros(1, 3).to(amounts))
        there, back = regress(guesses, amounts, weight), regress(amounts, guesses, weight)
        maps = StyleMaps(start.then(there).then(to_density), to_density.inverse().then(back).then(start.inverse()))
        error, veil, is_he = opinions.split([2, 1, 1], dim=1)
        return Look(anchor(maps, torch.sigmoid(veil[:, 0]), sight), error - 3.5, is_he[:, 0], amounts)


def describe(amounts: Tensor, counts: Tensor) -> Tensor:
    """Return quantiles (B, ...) of the amounts (B, P, ...) of pixels that count, along some directions."""
    return quantiles(amounts[..., :3] @ torch.tensor(DIRECTIONS).to(amounts).T, counts, LEVELS).flatten(1)


def regress(given: Tensor, wanted: Tensor, weight: Tensor) -> AffineMap:
    """Return the affine maps that lead from amounts (B, P, 3) to others, by least squares with weights (B, P).

    What the pixels do not say, because they hardly spread that way, stays as it is.
    """
    # In double precision: where there is hardly any tissue, amounts are in the hundreds, and their squares far apart.
    rows = torch.cat([given, torch.ones_like(given[..., :1])], dim=2).double()
    share = (weight / weight.sum(1, keepdim=True).clamp(min=1e-6))[..., None].double()
    ridge = torch.diag(torch.tensor([RIDGE, RIDGE, RIDGE, RIDGE / 10])).to(rows)
    moment = rows.transpose(1, 2) @ (share * rows) + ridge
    follows = rows.transpose(1, 2) @ (share * wanted.double()) + ridge @ torch.eye(4, 3).to(rows)
    solved = torch.linalg.solve(moment, follows).to(given)
    return AffineMap(solved[:, :3], solved[:, 3])


@torch.no_grad()
def find_frame(above: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return a first guess of the stains: where Macenko's method would put them, but never degenerate.

    Args:
        above: (B, P, 3) densities above those of glass.
        counts: (B, P) which of the pixels count.

    Returns:
        (B, 3, 3) densities of two strong stains, the redder of which comes second, and of what is neither; and (B, 3)
        how far the densities spread along their principal axes, the least first.
    """
    weight = counts.to(above)
    moment = (above * weight[..., None]).transpose(1, 2) @ above / weight.sum(1).clamp(min=1)[:, None, None]
    variance, axes = torch.linalg.eigh(moment + 1e-6 * torch.eye(3).to(moment))
    # Densities are positive, so the first axis can point along them; the second one's sign does not matter.
    first = axes[..., 2] * torch.where(axes[..., 2].sum(1, keepdim=True) < 0, -1.0, 1.0)
    plane = torch.stack([first, axes[..., 1]], dim=1)
    along, across = (above @ plane.transpose(1, 2)).unbind(2)
    # The angle of a pale pixel is mostly noise, so each counts by how much stain it holds.
    angle = torch.atan2(across, along)
    tails = weighted_quantile(angle, weight * along.clamp(min=0), torch.tensor([TAIL, 1 - TAIL]))
    middle, half = tails.mean(1), ((tails[:, 1] - tails[:, 0]) / 2).clamp(min=LEAST_ANGLE)
    tails = torch.stack([middle - half, middle + half], dim=1)
    stains = torch.stack([tails.cos(), tails.sin()], dim=2) @ plane
    redness = stains[..., 0] / stains.abs().sum(2).clamp(min=1e-6)
    stains = torch.where((redness[:, 0] < redness[:, 1])[:, None, None], stains.flip(1), stains)
    amounts = above @ torch.linalg.pinv(stains)
    strong = [weighted_quantile(amount, weight, torch.tensor([STRONG])) for amount in amounts.unbind(2)]
    strength = torch.cat(strong, dim=1).clamp(min=LEAST_SCALE)
    normal = torch.linalg.cross(stains[:, :1], stains[:, 1:])
    normal = 0.25 * normal / normal.norm(dim=2, keepdim=True).clamp(min=1e-9) * strength.mean(1)[:, None, None]
    return torch.cat([stains * strength[..., None], normal], dim=1), variance.clamp(min=1e-9).log() / 2


def anchor(maps: StyleMaps, veil: Tensor, sight: Sight) -> StyleMaps:
    """Return maps that, where glass is seen, make it white but for a share `veil` (B,) of its density, and back."""
    white = (veil * sight.glass.mean(1).clamp(0, MOST_VEIL))[:, None].expand(-1, 3)
    seen = sight.sees_glass[:, None]

    def move(each: AffineMap, given: Tensor, wanted: Tensor) -> AffineMap:
        return AffineMap(each.matrix, torch.where(seen, wanted - (given[:, None] @ each.matrix)[:, 0], each.bias))

    return StyleMaps(move(maps.normalize, sight.glass, white), move(maps.restain, white, sight.glass))


def quantiles(values: Tensor, counts: Tensor, levels: tuple[float, ...]) -> Tensor:
    """Return the quantiles (B, C, Q) of values (B, P, C), of those pixels that `counts` (B, P) says; gradients pass."""
    masked = torch.where(counts[..., None], values, torch.inf).transpose(1, 2)
    ordered = masked.sort(dim=2).values
    last = (counts.sum(1) - 1).clamp(min=0)
    place = last[:, None] * torch.tensor(levels, device=values.device)
    low = place.floor().long()
    high = torch.minimum(low + 1, last[:, None])
    shape = (-1, values.shape[2], -1)
    below = ordered.gather(2, low[:, None].expand(shape))
    above = ordered.gather(2, high[:, None].expand(shape))
    found = torch.lerp(below, above, (place - low).to(values)[:, None].expand(shape))
    return torch.where(counts.any(1)[:, None, None], found, 0)


def soft_rgb(density: Tensor) -> Tensor:
    """Return intensities of densities of any shape; what is brighter than white stays a little so, for the gradient."""
    tamed = torch.where(density > 0, density, 0.1 * density).clamp(-0.3, 6)
    return (256 * torch.exp(-tamed) - 1) / 255
