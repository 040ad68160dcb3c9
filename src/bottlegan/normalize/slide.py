"""Whole slides in another stain: read, mapped and written tile by tile, in bounded memory.

A color map knows nothing but a pixel's color, so a tile comes out the same alone and in its slide, and seams cannot be.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bottlegan import __version__
from bottlegan.errors import InputError
from bottlegan.models.files import load_model
from bottlegan.models.paradigms import StyleModel
from bottlegan.normalize.folder import ColorMap
from bottlegan.normalize.normalizer import Direction, Normalizer
from bottlegan.progress import Json, Progress
from bottlegan.slides.grid import Grid, Region, Size, parse_region
from bottlegan.slides.image import Levels, from_batch, to_batch
from bottlegan.slides.reader import Broken, Slide, measure_downsample, open_slide, read_all_but_broken
from bottlegan.slides.stream import stream_pyramid
from bottlegan.slides.writer import QUALITY, Form, Format, check_target, choose_format, writing_pyramid
from bottlegan.stain.lut import ColorTable

MILLION = 1e6


@dataclass(frozen=True)
class SlideMap:
    """A color map, and what to say of it in the files that it makes."""

    convert: ColorMap
    note: Mapping[str, Json]

    def then(self, following: "SlideMap") -> "SlideMap":
        """Return this map and another after it, as one."""
        return SlideMap(
            lambda levels: following.convert(self.convert(levels)), {**self.note, "then": dict(following.note)}
        )


@dataclass(frozen=True)
class SlideOptions:
    """What to read of a slide, and how to write it."""

    level: int = 0
    """Which level to read; 0 is the finest."""
    region: str | None = None
    """Which part of that level, as X,Y,WIDTH,HEIGHT in its pixels; else all of it."""
    quality: int = QUALITY
    """Of JPEG, from 1 to 100."""
    kind: Format | None = None
    """Else as the name of the output says."""
    strict: bool = False
    """Stop at the first tile that cannot be read; else such tiles become white."""


@dataclass(frozen=True)
class SlideResult:
    """What became of a slide."""

    megapixels: float
    seconds: float
    broken: list[Broken] = field(default_factory=list)
    """What could not be read, and is white."""


def map_slide(
    source: Path,
    target: Path,
    color_map: SlideMap,
    options: SlideOptions | None = None,
    progress: Progress | None = None,
) -> SlideResult:
    """Write the slide `source`, mapped, to the pyramid `target`, whole or not at all.

    The source's color profile is left out, because it says how the scanner saw the colors that it had.
    """
    options, start = options or SlideOptions(), time.perf_counter()
    check_names(source, target)
    broken: list[Broken] = []
    with open_slide(source) as slide, _one_thread():
        grid = lay_grid(slide, options)

        def make(index: int) -> Levels:
            if options.strict:
                return color_map.convert(slide.read(grid[index]))
            levels, lost = read_all_but_broken(slide, grid[index])
            mapped = color_map.convert(levels)
            for part in lost:
                mapped[part.region.within(grid[index])] = 255  # after mapping: no map need keep white
            broken.extend(lost)
            return mapped

        form = choose_form(slide, grid, options, target)
        with writing_pyramid(target, form, _write_note(slide, grid, color_map.note, form)) as writer:
            stream_pyramid(make, writer, progress=progress, label=source.name)
            writer.note["unreadable tiles"] = len(broken)
            if len(broken) >= len(grid):
                raise broken[0].error
    broken.sort(key=lambda part: (part.region.y, part.region.x))  # threads report in any order
    return SlideResult(grid.region.width * grid.region.height / MILLION, time.perf_counter() - start, broken)


def check_slide(source: Path, target: Path, options: SlideOptions) -> None:
    """Refuse what `map_slide` would, before any time is spent on fitting a style."""
    check_names(source, target)
    with open_slide(source) as slide:
        choose_form(slide, lay_grid(slide, options), options, target)


def check_names(source: Path, target: Path) -> None:
    """Refuse an output that is no TIFF, has no folder to go to, or is the input."""
    if source.resolve() == target.resolve():
        raise InputError(f"{target}: is the input itself; name another output, the input is never overwritten")
    check_target(target)


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
            "reaches beyond it; give X,Y,WIDTH,HEIGHT in pixels of that level"
        )
    return Grid(region, slide.tile(options.level))


def choose_form(slide: Slide, grid: Grid, options: SlideOptions, target: Path) -> Form:
    """Return what the pyramid is to look like: tiles as in the source, so that none is decoded twice."""
    step, size = measure_downsample(slide, options.level), Size(grid.region.width, grid.region.height)
    mpp = None if slide.mpp is None else (slide.mpp[0] * step, slide.mpp[1] * step)
    return Form(size, grid.tile, mpp, options.quality, options.kind or choose_format(target))


def fit_map(source: Path, model: Path, seed: int, force: bool, progress: Progress | None = None) -> SlideMap:
    """Fit one style to tissue of a slide, and return the map to the reference stain; refuse what is not H&E."""
    normalizer = Normalizer.fit(source, model=model, seed=seed, progress=progress, force=force)
    diagnosis = normalizer.diagnosis
    if diagnosis is None:
        raise RuntimeError("a fit has a diagnosis")
    if normalizer.refused:
        raise InputError(
            f"{source}: {diagnosis.verdict}: {diagnosis.reason}; nothing was written, --force it to do so anyway"
        )
    _check_map(normalizer.network.on("cpu"), model)
    said = {"verdict": diagnosis.verdict.value, "reason": diagnosis.reason, "forced": force, "seed": seed}
    return SlideMap(normalizer, _name_map(model, "normalize", "fitted to this slide") | said)


def load_map(model: Path, style: str, direction: Direction) -> SlideMap:
    """Return the map from or to a style that a model of any paradigm knows."""
    network = load_model(model)
    _check_map(network, model)
    code = network.codes[style].detach()
    run = network.normalize if direction == "normalize" else network.restain

    @torch.no_grad()
    def convert(colors: Levels) -> Levels:
        return from_batch(run(to_batch(colors[None]), code))[0][0]

    return SlideMap(ColorTable(convert), _name_map(model, direction, style))


def _check_map(network: StyleModel, model: Path) -> None:
    form = network.config.generator
    if form.kind != "pixel" or form.statistics != "frozen":
        raise InputError(
            f"{model}: maps a pixel by what is around it, so the tiles of a slide would not fit together; "
            "use a model of pixel generators with frozen statistics"
        )


def _name_map(model: Path, direction: Direction, style: str) -> dict[str, Json]:
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    return {"direction": direction, "style": style, "model": model.name, "model sha256": digest}


def _write_note(slide: Slide, grid: Grid, note: Mapping[str, Json], form: Form) -> dict[str, Json]:
    """Return what to say of a slide in its description."""
    region = grid.region
    return {
        "software": f"bottlegan {__version__}",
        "source": slide.path.name,
        "level": region.level,
        "region": [region.x, region.y, region.width, region.height],
        "jpeg": f"quality {form.quality}, chroma 4:4:4",
        "color profile": "none" if slide.icc is None else "dropped: the source's does not describe these colors",
        "map": dict(note),
    }


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread a call: it is called by many at once, which would fight over the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
