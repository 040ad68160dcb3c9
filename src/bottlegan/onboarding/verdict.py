"""Verdicts: what to think of a style that was fitted to a few images, in one word, with its reason and its remedy.

The encoder says itself how far off it expects to be. All that is left to decide is where to draw the lines. Those of
the expected error, of darkness and of what is likely H&E were drawn on simulated labs that no training saw
(`bench.typical`). The others are judgment.
"""

from dataclasses import dataclass
from enum import StrEnum

GOOD_ERROR = 21.5
"""Expected root mean square error, in levels of 255, below which a style is good, as in 99 of 100 simulated labs."""
GOOD_GAIN = 4.0
"""Noise gain up to which a style is good: above, noise that nobody sees before may be seen after."""
MOST_GRAIN = 0.3
"""Largest grain of normalized tissue in any direction of color, in density, as in 99 of 100 simulated labs. Maps that
would make more are weakened in that direction."""
LEAST_TISSUE = 0.005
"""Share of the pixels below which an image shows no tissue."""
LEAST_CONTRAST = 0.06
"""Density between the brightest and the darkest pixels, 15 levels, below which there is only glass."""
MOST_DARKNESS = 3.0
"""Median density, a twentieth of the light, from which on the background is dark, as in fluorescence: more than in any
of 223 simulated labs of H&E."""
LIKELY_HE = 0.8
"""Probability of being H&E up to which a style is uncertain: below that of 99 in 100 simulated labs of H&E."""
LEAST_HE = 0.5
"""The same, below which images are refused: they are more likely something else."""


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
    expected_error: float
    """Expected root mean square error of normalizing and restaining, in levels of 255."""
    gain: float
    """Noise gain: noise in the normalized image over that in the image, in density."""
    is_he: float
    """Probability that the images show H&E, in [0, 1]."""
    tissue: float
    """Share of the pixels that show tissue, in [0, 1]."""
    contrast: float
    """Mean density between the brightest and the darkest places."""
    darkness: float
    """Median of the mean density."""


def diagnose(
    *, expected_error: float, gain: float, is_he: float, tissue: float, contrast: float, darkness: float
) -> StyleDiagnosis:
    """Return the diagnosis that follows from the figures."""
    # Written so that NaN fails every test.
    if not (tissue >= LEAST_TISSUE and contrast >= LEAST_CONTRAST):
        verdict, reason = Verdict.REFUSED, "no tissue found, only bare glass; give images that show stained tissue"
    elif not (is_he >= LEAST_HE and darkness <= MOST_DARKNESS):
        reason = "the colors are not those of hematoxylin and eosin on bright glass; give bright-field H&E images"
        verdict = Verdict.REFUSED
    elif not is_he >= LIKELY_HE:
        reason = "the colors may not be those of hematoxylin and eosin; check the result, or give more images"
        verdict = Verdict.UNCERTAIN
    elif not gain <= GOOD_GAIN:
        reason = f"noise is amplified {gain:.1f} times; check the result, or scan a stronger stain"
        verdict = Verdict.UNCERTAIN
    elif not expected_error <= GOOD_ERROR:
        reason = f"expected error {expected_error:.0f} levels; check the result, or give more images with more tissue"
        verdict = Verdict.UNCERTAIN
    else:
        verdict, reason = Verdict.GOOD, f"expected error {expected_error:.0f} levels"
    return StyleDiagnosis(verdict, reason, expected_error, gain, is_he, tissue, contrast, darkness)
