"""How far to trust a style that was fitted to a few images: figures, a verdict, and its reason in words.

A staining style may have any color, so no color alone is refused. What all H&E has in common is how its two stains are
distributed in the tissue, that its colors lie on a plane, and that it lies on bright glass. An image is refused where
two of these speak against it, or one does so beyond doubt.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from bottlegan.models.paradigms import BottleGAN
from bottlegan.stain.macenko import LEAST_TISSUE, DensityMap, Route, find_tissue, plane_normal
from bottlegan.training.evidence import Evidence, gather_evidence
from bottlegan.training.warm import normalize_density

OFF_PLANE = 0.15
"""Density across the plane of the two stains, beside a tenth of that within, from where a color is no mix of both."""

# Refused. In brackets, how far H&E gets: of 240 artificial styles of real tissue, real laboratories, simulated styles.
NO_CONTRAST = 0.05  # density, 12 levels, within which even the darkest pixels are glass [0.19]
NOISE_CONTRAST = 0.3  # density within which colors that scatter in all directions alike are noise on glass
ALL_DIRECTIONS = 0.25  # third spread, of the first, from where colors fill a volume and no plane [0.19, real]
NO_BRIGHT_GLASS = 1.2  # density of the brightest pixels, a third of the light, on which no tissue lies [0.82]
DARK_MEDIAN = 2.4  # density of most pixels, a tenth of the light, from where the background is black, ...
BRIGHT_SPOTS = 0.5  # ... if there also are bright pixels; a style so dark has none [0.82]
SECOND_SPREAD = 0.08  # second spread, of the first, below which a second stain is hardly there
SECOND_DENSITY = 0.025  # second spread in density that noise alone can make
SECOND_NOISE = 0.45  # third spread, which is noise, of the second, from where the second is noise as well
ONE_UNLIKE = 0.035  # distance to reference tissue above which one stain is not two of one color [0.022]
NO_COLOR = 0.004  # second spread, of the first, below which an image is gray [0.015]
BROWN = 0.95  # distance from hematoxylin and DAB within which the stains are these
OFF_BROWN = 0.1  # share of the density off their plane within which they are all there is
BROWN_UNLIKE = 0.058  # distance to reference tissue above which brown is not distributed as eosin is [0.027 if brown]
BROWN_UNSURE = 0.03  # the same, if the order of the stains is not clear, either ...
BROWN_MARGIN = 0.48  # ... by an order margin below this
INK_SHOWN = 0.35  # share of the image that strokes of a pen cover at most
INK_FLAT = 0.35  # flatness of ink, which covers evenly; pale tissue on much glass can be as flat, ...
INK_UNLIKE = 0.06  # ... but its two stains are distributed as in tissue [0.05 on as much glass]
INK_MARGIN = 0.45  # order margin below which they are not [0.56 on as much glass]
THICK = 0.05  # third spread, of the first, of photographs and real stains; artificial styles are thinner ...
THICK_DENSITY = 0.02  # ... but for noise, which in pale styles can be as much, though not in density
THICK_UNLIKE = 0.09  # distance to reference tissue above which ...
THICK_IF_UNLIKE = 0.03  # ... this much will do
NOT_GREEN = 0.4  # share of colors that absorb green most, which real stains do [0.97]

# Uncertain.
LITTLE_TISSUE = 0.04  # share of the pixels: below it, one nucleus more or less moves the strength of a stain
ALIKE = 4.0  # degrees between the stains
CONDITION = 12.0  # condition number at which noise of one level becomes visible
CUT = 0.4  # share of the tissue that is cut off in a channel
ORDER_MARGIN = 0.35  # below which one style in three had its stains exchanged or bent
EXCHANGED = 1.1  # distance with the stains exchanged, relative to that as they are: both fit alike ...
EXCHANGED_MARGIN = 0.6  # ... and the closed form was not sure
OUTSIDE = 0.05  # share of the tissue that is no mix of the two stains
UNLIKE = 0.075  # distance to reference tissue that one in twenty styles exceeds
DISTANCE = 0.06  # the same of the normalized colors, glass included, so only where there is ...
MOSTLY_TISSUE = 0.4  # ... this share of tissue
BOTH_UNLIKE, BOTH_DISTANCE = 0.05, 0.048  # of these two, if both are this high
STRANGE = 3.0  # times as far from the middle of the codes as is usual


class Verdict(StrEnum):
    """Whether to use a style."""

    GOOD = "good"
    UNCERTAIN = "uncertain"
    REFUSED = "refused"


@dataclass(frozen=True)
class StyleDiagnosis:
    """What was found out about a fitted style."""

    verdict: Verdict
    reason: str
    distance: float
    """Between the normalized colors and those of reference images with similar tissue, in units of strong stain."""
    condition: float
    """Condition number of the map: large where it amplifies noise."""
    outside: float
    """Share of the tissue whose normalized colors are no mix of hematoxylin and eosin, in [0, 1]."""
    tissue: float
    """Share of the pixels that are tissue, in [0, 1]."""
    angle: float
    """Degrees between the two stain directions."""
    order_margin: float
    """How clearly hematoxylin and eosin were told apart, from 0 (a guess) to 1."""
    strangeness: float
    """How far the code is from those that the prior knows: 1 is usual."""
    unlike: float
    """Between how the two stains are distributed in the tissue and in similar reference tissue: 0.02 is usual."""


def diagnose(
    model: BottleGAN, code: Tensor, fitted: DensityMap, density: Tensor, distance: float, *, exchanged: float
) -> StyleDiagnosis:
    """Return the diagnosis of a style.

    Args:
        model: The network.
        code: (K,) the style code.
        fitted: The map that the code holds.
        density: (1, P, 3) of the lab's images.
        distance: Of the normalized colors to those of similar reference tissue.
        exchanged: The same with hematoxylin and eosin exchanged.
    """
    closed_form = fitted.diagnoses[0]
    evidence = gather_evidence(density, model.reference.statistics())
    figures = {
        "distance": distance,
        "condition": torch.linalg.cond(fitted.matrix[0]).item(),
        "outside": share_outside(model, code, density),
        "tissue": closed_form.tissue,
        "angle": closed_form.angle,
        "order_margin": closed_form.order_margin,
        "strangeness": code.square().mean().sqrt().item(),
        "unlike": evidence.unlike,
    }
    found = StyleDiagnosis(Verdict.REFUSED, "", **figures)
    if reason := find_refusal(evidence, found):
        return StyleDiagnosis(Verdict.REFUSED, reason, **figures)
    if reason := find_doubt(evidence, found, closed_form.route, exchanged):
        return StyleDiagnosis(Verdict.UNCERTAIN, reason, **figures)
    return StyleDiagnosis(Verdict.GOOD, "two stains found", **figures)


def share_outside(model: BottleGAN, code: Tensor, density: Tensor) -> float:
    """Return the share of tissue in densities (1, P, 3) that the network maps to no mix of the two stains."""
    tissue = density[find_tissue(density)].float()
    if not len(tissue):
        return 0.0
    mapped = normalize_density(model, tissue[None], code[None])[0]
    normal = plane_normal(model.reference.matrix[None])[0, 0]
    across = (mapped @ normal).abs()
    return (across > OFF_PLANE + 0.1 * mapped.norm(dim=1)).float().mean().item()


def find_refusal(seen: Evidence, figures: StyleDiagnosis) -> str:
    """Return why the images are not H&E, as a sentence with the remedy; empty if nothing speaks against it."""
    checks = {
        "no tissue found, only bare glass; give images that show stained tissue": shows_nothing(seen, figures),
        "the colors are not those of stains on bright glass: the background is dark, as in fluorescence; "
        "give bright-field H&E images": is_dark(seen),
        "the colors are not those of two stains on glass: only one stain found; "
        "give images that are stained with both hematoxylin and eosin": has_one_stain(seen),
        "the colors are those of hematoxylin and brown DAB, as in immunohistochemistry, and not of H&E; "
        "give H&E images of the lab": is_brown(seen, figures),
        "no tissue found, only strokes of even color on bare glass, as of a pen; give images that show tissue": is_ink(
            seen, figures
        ),
        "the colors are not those of two stains on glass: they are more than two can mix, as in a photograph; "
        "give H&E images of the lab": is_photo(seen),
    }
    return next((reason for reason, applies in checks.items() if applies), "")


def shows_nothing(seen: Evidence, figures: StyleDiagnosis) -> bool:
    """Return whether there is bare glass only, or noise on it."""
    noise = seen.contrast < NOISE_CONTRAST and seen.spread[2] > ALL_DIRECTIONS * seen.spread[0]
    return seen.contrast < NO_CONTRAST or figures.tissue < LEAST_TISSUE or noise


def is_dark(seen: Evidence) -> bool:
    """Return whether the background is dark: no bright pixel, or few on black."""
    few_bright = seen.median > DARK_MEDIAN and seen.brightest < BRIGHT_SPOTS
    return seen.brightest > NO_BRIGHT_GLASS or few_bright


def has_one_stain(seen: Evidence) -> bool:
    """Return whether all colors are one, stronger or weaker, but for noise."""
    first, second, third = seen.spread
    little = second < min(SECOND_SPREAD * first, SECOND_DENSITY)
    noise = third > SECOND_NOISE * second and seen.unlike > ONE_UNLIKE
    return (little and noise) or second < NO_COLOR * first


def is_brown(seen: Evidence, figures: StyleDiagnosis) -> bool:
    """Return whether the stains are hematoxylin and DAB, and not distributed as those of H&E are."""
    enough = BROWN_UNSURE if figures.order_margin < BROWN_MARGIN else BROWN_UNLIKE
    return looks_brown(seen) and seen.unlike > enough


def looks_brown(seen: Evidence) -> bool:
    """Return whether all colors are mixes of hematoxylin and DAB, of which an artificial style of H&E may be, too."""
    return seen.brown < BROWN and seen.off_brown < OFF_BROWN


def is_ink(seen: Evidence, figures: StyleDiagnosis) -> bool:
    """Return whether a small part of the glass is covered, evenly, and not as by tissue."""
    strokes = seen.shown < INK_SHOWN and seen.flatness > INK_FLAT
    return strokes and seen.unlike > INK_UNLIKE and figures.order_margin < INK_MARGIN


def is_photo(seen: Evidence) -> bool:
    """Return whether the colors fill a volume, or lie on no plane and do not absorb green most, as real stains do."""
    thickness = seen.spread[2] / max(seen.spread[0], 1e-6)
    enough = THICK_IF_UNLIKE if seen.unlike > THICK_UNLIKE else THICK
    thick = thickness > enough and seen.spread[2] > THICK_DENSITY
    return thickness > ALL_DIRECTIONS or (thick and seen.green < NOT_GREEN)


def find_doubt(seen: Evidence, figures: StyleDiagnosis, route: Route, exchanged: float) -> str:
    """Return why the style may be wrong, as a sentence with the remedy; empty if there is no doubt."""
    unlike = seen.unlike > UNLIKE or (figures.distance > DISTANCE and figures.tissue > MOSTLY_TISSUE)
    both = seen.unlike > BOTH_UNLIKE and figures.distance > BOTH_DISTANCE
    unsure = figures.order_margin < EXCHANGED_MARGIN and exchanged < EXCHANGED * figures.distance
    checks = {
        "a second stain hardly stands out from the noise, so the colors stay nearly as they are; "
        "give more or sharper images": route == Route.IDENTITY,
        f"only {figures.tissue:.1%} of the pixels show tissue; give images with more of it": figures.tissue
        < LITTLE_TISSUE,
        "the colors could also be those of brown immunohistochemistry; check that the images are H&E": looks_brown(
            seen
        ),
        "the two stains have nearly the same color, so that noise is amplified; check the result, or rescan": (
            figures.angle < ALIKE or figures.condition > CONDITION
        ),
        "the scanner has cut off pale tissue at white; check the result, or scan with less exposure": seen.cut > CUT,
        "hematoxylin and eosin are hard to tell apart here; give more images, with nuclei and stroma": (
            figures.order_margin < ORDER_MARGIN or unsure
        ),
        f"{figures.outside:.0%} of the tissue has colors of neither stain, as under a pen; give images without": (
            figures.outside > OUTSIDE
        ),
        "the stains are distributed unlike in the tissue that the model knows; "
        "check the result, and leave out images with pen, folds or blood": unlike or both,
        "the style is far from all that the model knows; check the result, or train with images of the lab": (
            figures.strangeness > STRANGE
        ),
    }
    return next((reason for reason, applies in checks.items() if applies), "")
