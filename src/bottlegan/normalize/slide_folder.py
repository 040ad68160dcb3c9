"""Folders of slides: each is mapped by itself, and one that cannot be does not stop the rest."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bottlegan.errors import InputError, MissingError
from bottlegan.files import make_folder
from bottlegan.normalize.slide import SlideOptions, SlideResult, check_slide, map_slide
from bottlegan.normalize.slide_map import MakeMap
from bottlegan.progress import Progress
from bottlegan.slides.reader import SLIDES, TIFF, is_slide


@dataclass(frozen=True)
class Outcome:
    """What became of one slide of a folder."""

    source: Path
    target: Path
    state: Literal["written", "was there", "failed"]
    result: SlideResult | None = None
    error: str = ""


def list_slides(folder: Path) -> list[Path]:
    """Return the slides in a folder, by name; hidden files are passed over."""
    return [each for each in _list_files(folder) if is_slide(each)]


def map_slide_folder(
    source: Path, target: Path, make_map: MakeMap, options: SlideOptions, progress: Progress | None = None
) -> list[Outcome]:
    """Map each slide of a folder to a pyramid in the folder `target`, which is made if need be.

    A pyramid takes its name only when it is whole, so what is there already is done, and is left alone.
    """
    if source.resolve() == target.resolve():
        raise InputError(f"{target}: is the input itself; name another output, the input is never overwritten")
    pairs = pair_slides(source, target, options)
    make_folder(target)
    return [_map_one(slide, output, make_map, options, progress) for slide, output in pairs]


def pair_slides(source: Path, target: Path, options: SlideOptions) -> list[tuple[Path, Path]]:
    """Return each slide of a folder, and where its result goes; a TIFF may be a slide that is damaged."""
    slides = [each for each in _list_files(source) if each.suffix.lower() in SLIDES | TIFF]
    if not slides:
        raise MissingError(f"{source}: holds no slide; give a slide, or a folder of slides")
    ending = ".ome.tiff" if options.kind == "ome" else ".tiff"
    pairs: dict[str, tuple[Path, Path]] = {}
    for slide in slides:
        if slide.stem in pairs:
            other = pairs[slide.stem][0].name
            raise InputError(f"{source}: {other} and {slide.name} would both become {slide.stem}{ending}; rename one")
        pairs[slide.stem] = (slide, target / f"{slide.stem}{ending}")
    return list(pairs.values())


def _list_files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_file() and not each.name.startswith("."))


def _map_one(
    source: Path, target: Path, make_map: MakeMap, options: SlideOptions, progress: Progress | None
) -> Outcome:
    if target.exists():
        return Outcome(source, target, "was there")
    try:
        check_slide(source, target, options)
        result = map_slide(source, target, make_map(source), options, progress)
    except InputError as error:
        return Outcome(source, target, "failed", error=str(error))
    return Outcome(source, target, "written", result)
