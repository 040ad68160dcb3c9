"""A slide on show: its tiles, the style that was found in it, and the maps of its colors to other stains."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bottlegan.colormap.levels import DENSITY
from bottlegan.colormap.table import Convert
from bottlegan.core.errors import InputError
from bottlegan.core.progress import Json
from bottlegan.imaging.files import Pixels
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.onboarding.verdict import Verdict
from bottlegan.slides.grid import Region
from bottlegan.slides.reader import Slide
from bottlegan.slides.tissue import mask_tissue
from bottlegan.viewer.pyramid import Pyramid, shrink

Shade = Literal["good", "uncertain", "refused", "known"]
THUMBNAIL = 480  # pixels along the longer side


@dataclass(frozen=True)
class Finding:
    """What was found out about the stain of a slide."""

    verdict: Shade
    reason: str
    expected_error: float | None
    normalizer: Normalizer | None
    """None where there is nothing to map, such as bare glass."""

    @property
    def usable(self) -> bool:
        """Whether colors are mapped unless somebody insists."""
        return self.normalizer is not None and not self.normalizer.refused

    def tell(self) -> dict[str, Json]:
        """Return what the page shows of it."""
        error = None if self.expected_error is None or not np.isfinite(self.expected_error) else self.expected_error
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "expected error": error,
            "usable": self.usable,
            "can be forced": self.normalizer is not None,
        }


def judge(fit: Callable[[], Normalizer]) -> Finding:
    """Return what was found out by a fit; one that fails for want of tissue is refused like any other."""
    try:
        normalizer = fit()
    except InputError as error:
        return Finding("refused", str(error), None, None)
    found = normalizer.diagnosis
    if found is None:
        return Finding("known", f"the model's own style {normalizer.name}", None, normalizer)
    return Finding(found.verdict.value, found.reason, found.expected_error, normalizer)


class ShownSlide:
    """An open slide, and what there is to find out about its stain."""

    def __init__(self, slide: Slide, fit: Callable[[Slide], Normalizer]) -> None:
        """Take an open slide and what fits a style to it."""
        self.slide, self.pyramid, self._fit = slide, Pyramid(slide), fit
        self._lock = Lock()
        self._finding: Finding | None = None

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.slide.path

    @property
    def finding(self) -> Finding:
        """What was found out about its stain, once: whoever asks first has to wait."""
        with self._lock:
            if self._finding is None:
                self._finding = judge(lambda: self._fit(self.slide))
            return self._finding

    @property
    def is_judged(self) -> bool:
        """Whether there is a finding yet."""
        return self._finding is not None

    def normalizer(self, *, forced: bool = False) -> Normalizer:
        """Return its normalizer; refuse what is refused, unless somebody insists."""
        found = self.finding
        if found.normalizer is None or (found.normalizer.refused and not forced):
            raise InputError(f"{self.path.name}: refused: {found.reason}")
        if not found.normalizer.refused:
            return found.normalizer
        given = found.normalizer
        return Normalizer(given.model, given.code, given.name, given.diagnosis, forced=True)

    def describe(self) -> dict[str, Json]:
        """Return what the page needs to lay it out."""
        width, height = self.slide.levels[0]
        return {
            "name": self.path.name,
            "width": width,
            "height": height,
            "tile": self.pyramid.tile.width,
            "steps": len(self.pyramid.sizes),
            "format": self.slide.kind,
            "mpp": None if self.slide.mpp is None else list(self.slide.mpp),
        }

    def draw_thumbnail(self, side: int = THUMBNAIL) -> Pixels:
        """Return the whole slide (H, W, 3), at most `side` pixels along its longer side."""
        return shrink(self._read_small(side), side)

    def _read_small(self, side: int) -> Pixels:
        """Return the whole slide at the coarsest step that is as large as asked for, if that is not much to read."""
        steps = [step for step, size in enumerate(self.pyramid.sizes) if max(size) >= side]
        overview, pixel = self.pyramid.overview
        step = max(steps, default=0)
        if max(overview.shape) >= side or pixel <= 2**step:
            return overview
        grid = self.pyramid.grid(step)
        rows = [[self.pyramid.read(step, x, y) for x in range(grid.columns)] for y in range(grid.rows)]
        return np.vstack([np.hstack(row) for row in rows])

    def mask_tissue(self) -> NDArray[np.bool_]:
        """Return where (H, W) tissue is, over the whole slide, much reduced."""
        return mask_tissue(self.pyramid.overview[0])

    def pick(self, x: int, y: int, convert: Convert | None) -> dict[str, Json]:
        """Return what there is to say of one pixel of the finest level."""
        width, height = self.slide.levels[0]
        if not (0 <= x < width and 0 <= y < height):
            raise InputError(f"{self.path.name} has no pixel {x}, {y}; it is {width} x {height}")
        before = self.slide.read(Region(0, x, y, 1, 1))
        said: dict[str, Json] = {"x": x, "y": y, "before": before[0, 0].tolist()}
        if convert is None or self.finding.normalizer is None:
            return said
        normalizer = self.normalizer(forced=True)
        hematoxylin, eosin = measure_stains(normalizer, normalizer(before)[0, 0])
        return {
            **said,
            "after": convert(before)[0, 0].tolist(),
            "hematoxylin": hematoxylin,
            "eosin": eosin,
            "uncertainty": float(normalizer.uncertainty(before)[0, 0]),
        }


def measure_stains(normalizer: Normalizer, color: Pixels) -> tuple[float, float]:
    """Return how much hematoxylin and eosin a normalized color (3,) holds; 1 is where the reference stain is strong."""
    stains = normalizer.model.arrays["reference.stains"].astype(np.float64)
    if not stains.any():
        return 0.0, 0.0
    above = DENSITY[color].astype(np.float64) - normalizer.model.glass
    hematoxylin, eosin = np.linalg.lstsq(stains.T, above, rcond=None)[0]
    return float(hematoxylin), float(eosin)


ORDER: dict[str, int] = {Verdict.REFUSED.value: 0, Verdict.UNCERTAIN.value: 1, Verdict.GOOD.value: 2, "known": 3}
"""Verdicts as a gallery sorts them: what needs a look comes first."""
