"""Folders of slides. Each is mapped by itself, and a slide that fails does not stop the others.

Slides are mapped in this process, in several processes of this machine (`workers`), or on other machines (`ray`). All
three call `map_one`. There are no locks: two runs that write to one folder at once map its slides twice.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.files import check_apart, make_folder
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.normalize.choice import MakeMap, MapChoice, need_color_map
from bottlegan.normalize.slides.one import SlideOptions, SlideResult, map_slide
from bottlegan.slides.notes import read_note
from bottlegan.slides.reader import SLIDES, TIFF, list_files
from bottlegan.slides.writer import Format

ENDINGS: dict[Format, str] = {"tiff": ".tiff", "ome": ".ome.tiff", "dicom": ""}


class Pair(NamedTuple):
    """A slide, and the path of its result."""

    source: Path
    target: Path


@dataclass(frozen=True)
class Outcome:
    """The outcome for one slide of a folder."""

    source: Path
    target: Path
    state: Literal["written", "was there", "failed"]
    result: SlideResult | None = None
    error: str = ""


Runner = Callable[[Sequence[Pair], MapChoice, SlideOptions, Progress], Iterable[Outcome]]
"""Maps slides, and yields the outcome of each as it ends, in any order."""


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
    """Map each slide of a folder to a pyramid in the folder `target`, which is created if necessary.

    A pyramid gets its name only when it is complete. An existing one is therefore done if it was made with the same
    options. Otherwise it is left alone, and the outcome says what differs. Outcomes are in the order of the slides'
    names, and are the same for any `run`.
    """
    check_apart([target], [source])
    pairs = pair_slides(source, target, options)
    need_color_map(choice)
    options = replace(options, request=describe_request(choice, options))
    make_folder(target)
    return sorted(run(pairs, choice, options, progress or Silent()), key=lambda outcome: outcome.source)


def pair_slides(source: Path, target: Path, options: SlideOptions) -> list[Pair]:
    """Return each slide of a folder and the path of its result. Any TIFF counts, as it may be a damaged slide."""
    slides = [file for file in list_files(source) if file.suffix.lower() in SLIDES | TIFF]
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


def describe_request(choice: MapChoice, options: SlideOptions) -> dict[str, Json]:
    """Return all options that were requested for each slide."""
    kept = ("level", "region", "quality", "kind")
    return {**choice.describe(), **{key: getattr(options, key) for key in kept}}


def compare_request(target: Path, request: Mapping[str, Json]) -> str:
    """Return how the options of an existing result differ from the requested ones; an empty text if they do not."""
    note = read_note(target)
    earlier = None if note is None else note.get("request")
    if not isinstance(earlier, dict):
        return f"{target}: exists already, but does not state the options it was made with; remove it"
    differing = [key for key in request if earlier.get(key) != request[key]]
    if not differing:
        return ""
    listed = ", ".join(f"{key} was {_say(earlier.get(key))}, now {_say(request[key])}" for key in differing)
    return f"{target}: exists already, made with other options ({listed}); remove it, or choose another folder"


def _say(value: Json) -> str:
    return "not given" if value is None else str(value)


def map_one(
    pair: Pair, make_map: MakeMap, options: SlideOptions, progress: Progress, threads: int | None = None
) -> Outcome:
    """Map one slide of a folder, unless that is done already, and return the outcome."""
    source, target = pair
    if target.exists():
        difference = compare_request(target, options.request)
        return Outcome(source, target, "failed" if difference else "was there", error=difference)
    try:
        result = map_slide(source, target, make_map, options, progress, threads=threads)
    except InputError as error:
        return Outcome(source, target, "failed", error=str(error))
    return Outcome(source, target, "written", result)
