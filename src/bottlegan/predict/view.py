"""A slide as a network sees it: at the resolution that the network was trained at, whatever levels the slide has."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from bottlegan.core.errors import InputError
from bottlegan.imaging.files import Pixels
from bottlegan.slides.grid import Region, Size
from bottlegan.slides.reader import Broken, Slide, measure_downsample, read_all_but_broken
from bottlegan.slides.tissue import choose_level

CLOSE = 0.01
"""How far off, as a share, the resolution of a level may be to be read as it is."""
FINER = 4.0
"""How many times finer than the slide a network may want it: beyond, there is nothing to see."""
BORDER = 4
"""Pixels of a level that are read beyond a region's edge, for the filter."""


@dataclass(frozen=True)
class View:
    """A slide, and how its pixels become those of the network."""

    slide: Slide
    level: int
    scale: float
    """Pixels of the level for one of the network, along a side."""
    downsample: float
    """Pixels of the finest level for one of the network."""
    size: Size
    """Of the whole slide in pixels of the network."""

    @property
    def whole(self) -> Region:
        """All of the slide, in pixels of the network."""
        return Region(0, 0, 0, *self.size)

    @property
    def mpp(self) -> tuple[float, float] | None:
        """Micrometers of a pixel of the network, across and down, if the slide says so."""
        if self.slide.mpp is None:
            return None
        return self.slide.mpp[0] * self.downsample, self.slide.mpp[1] * self.downsample

    def read(self, region: Region) -> tuple[Pixels, list[Broken]]:
        """Return a region (H, W, 3), given in pixels of the network, and what of it is white as it cannot be read."""
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
    """Return a slide at a network's resolution, or one of its levels as it is."""
    if level is not None:
        if not 0 <= level < len(slide.levels):
            raise InputError(f"{slide.path}: has no level {level}; its levels are 0 to {len(slide.levels) - 1}")
        return View(slide, level, 1.0, measure_downsample(slide, level), slide.levels[level])
    if micrometers is None:
        raise InputError(
            f"{slide.path}: at which resolution to read it is not known, as the network does not say which one it was "
            "trained at; give the level to read with --level"
        )
    if slide.mpp is None:
        raise InputError(f"{slide.path}: does not say how large its pixels are; give the level to read with --level")
    downsample = micrometers / (sum(slide.mpp) / 2)
    if downsample < 1 / FINER:
        raise InputError(
            f"{slide.path}: has pixels of {sum(slide.mpp) / 2:.3g} um, and the network was trained at {micrometers:g} "
            "um; give a slide that was scanned finer"
        )
    chosen = choose_level(slide, downsample * (1 + CLOSE))
    step = measure_downsample(slide, chosen)
    scale = downsample / step
    width, height = slide.levels[chosen]
    if abs(scale - 1) <= CLOSE:
        return View(slide, chosen, 1.0, step, slide.levels[chosen])
    return View(slide, chosen, scale, downsample, Size(max(1, round(width / scale)), max(1, round(height / scale))))
