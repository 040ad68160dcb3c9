"""A slide at the resolution that a network was trained at, whatever levels the slide has."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from bottlegan.core.errors import InputError
from bottlegan.imaging.files import Pixels
from bottlegan.slides.grid import Region, Size
from bottlegan.slides.reader import Broken, Slide, measure_downsample, read_all_but_broken
from bottlegan.slides.tissue import choose_level

CLOSE = 0.01
"""Relative difference in resolution up to which a level is read without scaling."""
FINER = 4.0
"""How many times finer than the slide's the network's resolution may be."""
BORDER = 4
"""Pixels of a level to read beyond a region's edge, for the filter."""


@dataclass(frozen=True)
class View:
    """A slide, and how its pixels are converted to those of the network."""

    slide: Slide
    level: int
    scale: float
    """Pixels of the level per pixel of the network, along a side."""
    downsample: float
    """Pixels of the finest level per pixel of the network."""
    size: Size
    """Size of the whole slide in pixels of the network."""

    @property
    def whole(self) -> Region:
        """The whole slide, in pixels of the network."""
        return Region(0, 0, 0, *self.size)

    @property
    def mpp(self) -> tuple[float, float] | None:
        """Micrometers per pixel of the network, across and down, if the slide states its resolution."""
        if self.slide.mpp is None:
            return None
        return self.slide.mpp[0] * self.downsample, self.slide.mpp[1] * self.downsample

    def read(self, region: Region) -> tuple[Pixels, list[Broken]]:
        """Return a region (H, W, 3) in pixels of the network, and its unreadable parts, which are white."""
        if self.scale == 1:
            return read_all_but_broken(self.slide, Region(self.level, region.x, region.y, region.width, region.height))
        box = [edge * self.scale for edge in (region.x, region.y, region.x + region.width, region.y + region.height)]
        limits = self.slide.levels[self.level]
        left, top = (max(0, int(edge) - BORDER) for edge in box[:2])
        right, bottom = (min(most, int(edge) + 1 + BORDER) for edge, most in zip(box[2:], limits, strict=True))
        levels, broken = read_all_but_broken(self.slide, Region(self.level, left, top, right - left, bottom - top))
        inside = (box[0] - left, box[1] - top, min(box[2], right) - left, min(box[3], bottom) - top)
        kind = Image.Resampling.BOX if self.scale > 1 else Image.Resampling.BILINEAR
        shown = Image.fromarray(levels).resize((region.width, region.height), kind, inside)
        return np.asarray(shown), broken


def look_at(slide: Slide, micrometers: float | None, level: int | None) -> View:
    """Return a view of a slide at a network's resolution, or of one of its levels without scaling."""
    if level is not None:
        if not 0 <= level < len(slide.levels):
            raise InputError(f"{slide.path}: has no level {level}; its levels are 0 to {len(slide.levels) - 1}")
        return View(slide, level, 1.0, measure_downsample(slide, level), slide.levels[level])
    if micrometers is None:
        raise InputError(
            f"{slide.path}: the resolution to read is unknown, because the network does not state which one it was "
            "trained at; give the level to read with --level"
        )
    if slide.mpp is None:
        raise InputError(f"{slide.path}: does not state the size of its pixels; give the level to read with --level")
    downsample = micrometers / (sum(slide.mpp) / 2)
    if downsample < 1 / FINER:
        raise InputError(
            f"{slide.path}: has pixels of {sum(slide.mpp) / 2:.3g} um, and the network was trained at {micrometers:g} "
            "um; give a slide with a finer scan"
        )
    chosen = choose_level(slide, downsample * (1 + CLOSE))
    step = measure_downsample(slide, chosen)
    scale = downsample / step
    width, height = slide.levels[chosen]
    if abs(scale - 1) <= CLOSE:
        return View(slide, chosen, 1.0, step, slide.levels[chosen])
    return View(slide, chosen, scale, downsample, Size(max(1, round(width / scale)), max(1, round(height / scale))))
