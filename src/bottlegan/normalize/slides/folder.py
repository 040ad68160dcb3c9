"""Folders of slides: each is mapped by itself, and one that cannot be does not stop the rest.

Slides are mapped in this process, in several of this machine (`workers`), or on others (`ray`). All three
call `map_one`. There are no locks: two runs at once that write to one folder do its slides twice.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.files import make_folder
from bottlegan.core.progress import Progress, Silent
from bottlegan.normalize.choice import MakeMap, MapChoice, need_color_map
from bottlegan.normalize.slides.one import SlideOptions, SlideResult, map_slide
from bottlegan.slides.reader import SLIDES, TIFF, list_files
from bottlegan.slides.writer import Format

ENDINGS: dict[Format, str] = {"tiff": ".tiff", "ome": ".ome.tiff", "dicom": ""}


class Pair(NamedTuple):
    """A slide, and where its result goes."""

    source: Path
    target: Path


@dataclass(frozen=True)
class Outcome:
    """What became of one slide of a folder."""

    source: Path
    target: Path
    state: Literal["written", "was there", "failed"]
    result: SlideResult | None = None
    error: str = ""


Runner = Callable[[Sequence[Pair], MapChoice, SlideOptions, Progress], Iterable[Outcome]]
"""A way to have slides mapped, which gives what became of each as it ends, in any order."""


def run_here(pairs: Sequence[Pair], choice: MapChoice, options: SlideOptions, progress: Progress) -> Iterator[Outcome]:
    """Map one slide after another in this process, each with all cores."""
    make_map = choice.prepare()
    for pair in pairs:
        yield map_one(pair, make_map, options, progress)


def map_slide_folder(
    source: Path,
    target: Path,
    choice: MapChoice,
    options: SlideOptions,
    *,
    run: Runner = run_here,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Map each slide of a folder to a pyramid in the folder `target`, which is made if need be.

    A pyramid takes its name only when it is whole, so what is there already is done, and is left alone. What becomes of
    the slides is given in the order of their names, and is the same for any way to `run`.
    """
    if source.resolve() == target.resolve():
        raise InputError(f"{target}: is the input itself; name another output, the input is never overwritten")
    pairs = pair_slides(source, target, options)
    need_color_map(choice)
    choice.prepare()  # refuses a style that the model does not know, before anything is made or started
    make_folder(target)
    return sorted(run(pairs, choice, options, progress or Silent()), key=lambda each: each.source)


def pair_slides(source: Path, target: Path, options: SlideOptions) -> list[Pair]:
    """Return each slide of a folder, and where its result goes; a TIFF may be a slide that is damaged."""
    slides = [each for each in list_files(source) if each.suffix.lower() in SLIDES | TIFF]
    if not slides:
        raise MissingError(f"{source}: holds no slide; give a slide, or a folder of slides")
    ending = ENDINGS[options.kind or "tiff"]
    pairs: dict[str, Pair] = {}
    for slide in slides:
        if slide.stem in pairs:
            other = pairs[slide.stem].source.name
            raise InputError(f"{source}: {other} and {slide.name} would both become {slide.stem}{ending}; rename one")
        pairs[slide.stem] = Pair(slide, target / f"{slide.stem}{ending}")
    return list(pairs.values())


def map_one(
    pair: Pair, make_map: MakeMap, options: SlideOptions, progress: Progress, threads: int | None = None
) -> Outcome:
    """Map one slide of a folder, unless that is done, and return what became of it."""
    source, target = pair
    if target.exists():
        return Outcome(source, target, "was there")
    try:
        result = map_slide(source, target, make_map, options, progress, threads=threads)
    except InputError as error:
        return Outcome(source, target, "failed", error=str(error))
    return Outcome(source, target, "written", result)
