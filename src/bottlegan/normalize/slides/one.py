"""Mapping a whole slide: read, mapped and written tile by tile, in bounded memory.

A color map depends only on a pixel's color. A tile therefore looks the same alone and in its slide, without seams.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bottlegan import __version__
from bottlegan.core.errors import InputError
from bottlegan.core.files import check_apart
from bottlegan.core.progress import Json, Progress
from bottlegan.imaging.files import Pixels
from bottlegan.normalize.choice import ChosenMap, MakeMap
from bottlegan.slides.grid import Grid, Region, Size, parse_region
from bottlegan.slides.reader import Broken, Slide, measure_downsample, open_slide, read_all_but_broken
from bottlegan.slides.stream import stream_pyramid
from bottlegan.slides.writer import QUALITY, Form, Format, check_target, choose_format, writing_pyramid

MILLION = 1e6


@dataclass(frozen=True)
class SlideOptions:
    """Which part of a slide to read, and how to write it."""

    level: int = 0
    """Level to read; 0 is the finest."""
    region: str | None = None
    """Part of that level, as X,Y,WIDTH,HEIGHT in its pixels; None for all of it."""
    quality: int = QUALITY
    """JPEG quality, from 1 to 100."""
    kind: Format | None = None
    """Output format; None for the format that the name of the output implies."""
    strict: bool = False
    """Whether to stop at the first tile that cannot be read. Otherwise such tiles become white."""
    request: Mapping[str, Json] = field(default_factory=dict)
    """All requested options. They are kept in the slide, so that a later run can compare them with its own."""


@dataclass(frozen=True)
class SlideResult:
    """The result for a slide."""

    megapixels: float
    seconds: float
    note: Mapping[str, Json]
    """Note about its map."""
    broken: list[Broken] = field(default_factory=list)
    """Parts that could not be read, and are white."""


def map_slide(
    source: Path,
    target: Path,
    make_map: MakeMap,
    options: SlideOptions | None = None,
    progress: Progress | None = None,
    *,
    threads: int | None = None,
) -> SlideResult:
    """Map the slide `source` and write it to the pyramid `target`, whole or not at all.

    It is opened once, so an unreadable slide is refused before a style is fitted to its tissue. Its color profile is
    dropped, because it describes the colors before mapping.
    """
    options, start = options or SlideOptions(), time.perf_counter()
    check_names(source, target, options)
    broken: list[Broken] = []
    with open_slide(source) as slide:
        grid = lay_grid(slide, options)
        form = choose_form(slide, grid, options, target)
        color_map = make_map(slide)

        def make(places: range) -> list[Pixels]:
            return [map_tile(slide, grid[place], color_map, options, broken) for place in places]

        with writing_pyramid(target, form, _write_note(slide, grid, color_map, form, options)) as writer:
            stream_pyramid(make, writer, threads, progress, source.name)
            writer.note["unreadable tiles"] = len(broken)
            if len(broken) >= len(grid):
                raise broken[0].error
    broken.sort(key=lambda part: (part.region.y, part.region.x))  # threads report in any order
    megapixels = grid.region.width * grid.region.height / MILLION
    return SlideResult(megapixels, time.perf_counter() - start, color_map.note, broken)


def map_tile(slide: Slide, region: Region, color_map: ChosenMap, options: SlideOptions, broken: list[Broken]) -> Pixels:
    """Return a mapped tile (H, W, 3). Unreadable parts are white and added to `broken`."""
    if options.strict:
        return color_map.convert(slide.read(region))
    levels, lost = read_all_but_broken(slide, region)
    mapped = color_map.convert(levels)
    for part, _ in lost:
        mapped[part.within(region)] = 255  # after mapping, because a map may change white
    broken.extend(lost)
    return mapped


def check_names(source: Path, target: Path, options: SlideOptions) -> None:
    """Refuse an output whose name does not match its format, whose folder does not exist, or that is the input."""
    check_apart([target], [source])
    check_target(target, options.kind or choose_format(target))


def lay_grid(slide: Slide, options: SlideOptions) -> Grid:
    """Return the tiles to read."""
    count = len(slide.levels)
    if not 0 <= options.level < count:
        raise InputError(f"{slide.path}: has no level {options.level}; its levels are 0 to {count - 1}")
    whole = Region(options.level, 0, 0, *slide.levels[options.level])
    region = whole if options.region is None else parse_region(options.region, options.level)
    if region.overlap(whole) != region:
        raise InputError(
            f"{slide.path}: level {options.level} is {whole.width} x {whole.height} px, and --region {options.region} "
            "extends beyond it; give X,Y,WIDTH,HEIGHT in pixels of that level"
        )
    return Grid(region, slide.tile(options.level))


def choose_form(slide: Slide, grid: Grid, options: SlideOptions, target: Path) -> Form:
    """Return the form of the pyramid. Its tiles match those of the source, so that none is decoded twice."""
    step, size = measure_downsample(slide, options.level), Size(grid.region.width, grid.region.height)
    mpp = None if slide.mpp is None else (slide.mpp[0] * step, slide.mpp[1] * step)
    return Form(size, grid.tile, mpp, options.quality, options.kind or choose_format(target))


def _write_note(slide: Slide, grid: Grid, color_map: ChosenMap, form: Form, options: SlideOptions) -> dict[str, Json]:
    """Return the description of a slide."""
    region = grid.region
    return {
        "software": f"bottlegan {__version__}",
        "source": slide.kind,  # not its name, which may identify a patient
        "level": region.level,
        "region": [region.x, region.y, region.width, region.height],
        "jpeg": f"quality {form.quality}, chroma 4:4:4",
        "color profile": "none" if slide.icc is None else "dropped: the source's does not describe these colors",
        "map": dict(color_map.note),
        "request": dict(options.request),
    }
