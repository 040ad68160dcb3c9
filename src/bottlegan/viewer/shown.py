"""A slide in the viewer: its tiles, its fitted style, and data about its pixels."""

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
from bottlegan.slides.grid import Region
from bottlegan.slides.reader import Slide
from bottlegan.slides.tissue import mask_tissue
from bottlegan.viewer.pyramid import Pyramid, Shelf

Shade = Literal["good", "uncertain", "refused", "known"]
THUMBNAIL, PICTURE = 480, 1024  # pixels along the longer side


@dataclass(frozen=True)
class Finding:
    """The finding about the stain of a slide."""

    verdict: Shade
    reason: str
    expected_error: float | None
    normalizer: Normalizer | None
    """None if there is nothing to map, such as bare glass."""

    @property
    def usable(self) -> bool:
        """Whether colors are mapped without being forced."""
        return self.normalizer is not None and not self.normalizer.refused

    def tell(self) -> dict[str, Json]:
        """Return the data for the page."""
        error = None if self.expected_error is None or not np.isfinite(self.expected_error) else self.expected_error
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "expected error": error,
            "usable": self.usable,
            "can be forced": self.normalizer is not None,
        }


def judge(fit: Callable[[], Normalizer], path: Path) -> Finding:
    """Return the finding from fitting a style to a slide. Unreadable slides and slides without tissue are refused."""
    try:
        normalizer = fit()
    except (InputError, OSError) as error:
        return Finding("refused", str(error).removeprefix(f"{path}: "), None, None)  # the page names the slide itself
    diagnosis = normalizer.diagnosis
    if diagnosis is None:
        return Finding("known", f"the model's own style {normalizer.name}", None, normalizer)
    return Finding(diagnosis.verdict.value, diagnosis.reason, diagnosis.expected_error, normalizer)


class ShownSlide:
    """A slide, and the finding about its stain."""

    def __init__(self, path: Path, shelf: Shelf, fit: Callable[[Slide], Normalizer]) -> None:
        """Take a slide's path, the shelf that opens it, and the function that fits a style to it."""
        self.path, self._shelf, self._fit = path, shelf, fit
        self._lock, self._picture_lock = Lock(), Lock()
        self._finding: Finding | None = None
        self._picture: Pixels | None = None

    @property
    def pyramid(self) -> Pyramid:
        """The slide's tiles; the slide is opened if necessary."""
        return self._shelf.open(self.path)

    @property
    def finding(self) -> Finding:
        """The finding about its stain, computed once. The first caller has to wait."""
        with self._lock:
            if self._finding is None:
                self._finding = judge(lambda: self._fit(self.pyramid.slide), self.path)
            return self._finding

    @property
    def finding_so_far(self) -> Finding | None:
        """The finding, or None if it is not known yet. Does not wait."""
        return self._finding

    def normalizer(self, *, forced: bool = False, remembers: bool = True) -> Normalizer:
        """Return its normalizer, or raise an error if it is refused and not forced."""
        finding = self.finding
        if finding.normalizer is None or (finding.normalizer.refused and not forced):
            raise InputError(f"{self.path.name}: refused: {finding.reason}")
        if remembers and not finding.normalizer.refused:
            return finding.normalizer
        normalizer = finding.normalizer
        return Normalizer(
            normalizer.model,
            normalizer.code,
            normalizer.name,
            normalizer.diagnosis,
            forced=normalizer.refused,
            remembers=remembers,
        )

    def describe(self) -> dict[str, Json]:
        """Return the layout of the slide for the page."""
        pyramid = self.pyramid
        width, height = pyramid.slide.levels[0]
        mpp = pyramid.slide.mpp
        return {
            "name": self.path.name,
            "width": width,
            "height": height,
            "tile": pyramid.tile.width,
            "steps": len(pyramid.sizes),
            "format": pyramid.slide.kind,
            "mpp": None if mpp is None else list(mpp),
        }

    def draw_thumbnail(self) -> Pixels:
        """Return a small picture (H, W, 3) of the whole slide."""
        return self.pyramid.draw_small(THUMBNAIL)

    def draw_picture(self) -> Pixels | None:
        """Return a picture (H, W, 3) of the whole slide that fills the page, or None if that takes long.

        It is drawn once.
        """
        with self._picture_lock:
            if self._picture is None and self.pyramid.is_quick(PICTURE):
                self._picture = self.pyramid.draw_small(PICTURE)
            return self._picture

    def mask_tissue(self) -> NDArray[np.bool_]:
        """Return a small tissue mask (H, W) of the whole slide."""
        return mask_tissue(self.pyramid.overview[0])

    def pick(self, x: int, y: int, convert: Convert | None) -> dict[str, Json]:
        """Return data about one pixel of the finest level."""
        slide = self.pyramid.slide
        width, height = slide.levels[0]
        if not (0 <= x < width and 0 <= y < height):
            raise InputError(f"{self.path.name} has no pixel {x}, {y}; it is {width} x {height}")
        before = slide.read(Region(0, x, y, 1, 1))
        facts: dict[str, Json] = {"x": x, "y": y, "before": before[0, 0].tolist()}
        if convert is None or self.finding.normalizer is None:
            return facts
        normalizer = self.normalizer(forced=True)
        hematoxylin, eosin = measure_stains(normalizer, normalizer(before)[0, 0])
        return {
            **facts,
            "after": convert(before)[0, 0].tolist(),
            "hematoxylin": hematoxylin,
            "eosin": eosin,
            "uncertainty": float(normalizer.uncertainty(before)[0, 0]),
        }


def measure_stains(normalizer: Normalizer, color: Pixels) -> tuple[float, float]:
    """Return the amounts of hematoxylin and eosin in a normalized color (3,); 1 is strong in the reference stain."""
    stains = normalizer.model.arrays["reference.stains"].astype(np.float64)
    if not stains.any():
        return 0.0, 0.0
    above = DENSITY[color].astype(np.float64) - normalizer.model.glass
    hematoxylin, eosin = np.linalg.lstsq(stains.T, above, rcond=None)[0]
    return float(hematoxylin), float(eosin)
