"""How `bottlegan normalize` and `bottlegan restain` process slides, and the options that only slides have."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bottlegan.cli.options import report_failures
from bottlegan.cli.progress import TerminalProgress
from bottlegan.core.errors import InputError

if TYPE_CHECKING:
    from bottlegan.normalize.choice import MapChoice
    from bottlegan.normalize.slides.folder import Runner
    from bottlegan.normalize.slides.one import SlideOptions, SlideResult

SLIDES = "Slides"
PLAIN = frozenset({".png", ".jpg", ".jpeg", ".webp"})
"""Suffixes of images that are never slides."""
Level = Annotated[
    int | None,
    typer.Option(help="Level of the slide to read.", show_default="0, the finest", min=0, rich_help_panel=SLIDES),
]
Part = Annotated[
    str | None,
    typer.Option(
        "--region",
        help="Part of that level to read, in its pixels.",
        show_default="all of it",
        metavar="X,Y,WIDTH,HEIGHT",
        rich_help_panel=SLIDES,
    ),
]
Quality = Annotated[
    int | None,
    typer.Option(help="Quality of the JPEG tiles.", show_default="90", min=1, max=100, rich_help_panel=SLIDES),
]
Format = Annotated[
    Literal["tiff", "ome", "dicom"] | None,
    typer.Option(
        "--format",
        help="tiff: a pyramid that OpenSlide reads. ome: OME-TIFF. dicom: a folder of DICOM files.",
        show_default="by the output's name",
        rich_help_panel=SLIDES,
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict", help="Stop at a tile that cannot be read, instead of making it white.", rich_help_panel=SLIDES
    ),
]
Everything = Annotated[
    bool,
    typer.Option("--everything", help="Map pen marks as well."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Number of slides of a folder to map at the same time, each in its own process. Helps with many small "
        "slides; a single slide uses all cores already.",
        show_default="1",
        min=1,
        rich_help_panel=SLIDES,
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        help="Map the slides of a folder on the Ray cluster at this address, such as auto or ray://host:10001. All its "
        "machines must see the same files.",
        metavar="ADDRESS",
        show_default=False,
        rich_help_panel=SLIDES,
    ),
]


def choose_runner(source: Path, workers: int | None, ray: str | None) -> "Runner | None":
    """Return how to map the slides of a folder, if --workers or --ray ask for it."""
    if workers is None and ray is None:
        return None
    if workers is not None and ray is not None:
        raise InputError("--workers uses processes of this machine, --ray a cluster; give one of them")
    if not source.is_dir():
        raise InputError(
            f"{source}: is not a folder; leave out --workers and --ray, which map several slides of a folder at once"
        )
    if ray is not None:
        from bottlegan.normalize.slides.ray import run_on_ray

        return run_on_ray(ray)
    from bottlegan.normalize.slides.folder import run_here
    from bottlegan.normalize.slides.workers import run_in_processes

    return run_here if workers in (None, 1) else run_in_processes(workers)


def find_slides(
    source: Path,
    level: int | None,
    region: str | None,
    quality: int | None,
    kind: Literal["tiff", "ome", "dicom"] | None,
    strict: bool,
    run: "Runner | None",
) -> "SlideOptions | None":
    """Return how to stream the input, if it is a slide or is to be treated as one; None for images."""
    has_options = strict or any(option is not None for option in (level, region, quality, kind, run))
    if not shows_slides(source):
        if not has_options:
            return None
        if source.is_dir() and shows_images(source):
            raise InputError(
                f"{source}: holds only images, no slide; leave out the options for slides: --level, --region, "
                "--quality, --format, --strict, --workers, --ray"
            )
    from bottlegan.normalize.slides.one import SlideOptions
    from bottlegan.slides.writer import QUALITY

    return SlideOptions(level or 0, region, QUALITY if quality is None else quality, kind, strict)


def shows_slides(source: Path) -> bool:
    """Return whether this is a slide, or a folder that holds one."""
    if not source.is_dir() and source.suffix.lower() in PLAIN:
        return False
    from bottlegan.slides.reader import is_slide, list_slides

    return bool(list_slides(source)) if source.is_dir() else is_slide(source)


def shows_images(folder: Path) -> bool:
    """Return whether a folder holds an image that is not a slide."""
    return any(file.suffix.lower() in PLAIN for file in folder.iterdir())


def stream(source: Path, target: Path, choice: "MapChoice", options: "SlideOptions", run: "Runner | None") -> None:
    """Map a slide, or each slide of a folder, and report the result."""
    from bottlegan.normalize.choice import need_color_map
    from bottlegan.normalize.slides.one import map_slide

    if source.is_dir():
        _stream_folder(source, target, choice, options, run)
        return
    need_color_map(choice)
    result = map_slide(source, target, choice.prepare(), options, TerminalProgress())
    if "verdict" in result.note:
        typer.echo(f"{source}: {result.note['verdict']}: {result.note['reason']}", err=True)
    for part in result.broken:
        typer.echo(f"left white: {part.error}", err=True)
    typer.echo(f"Wrote {target}: {_summarize(result)}.")


def _stream_folder(
    source: Path, target: Path, choice: "MapChoice", options: "SlideOptions", run: "Runner | None"
) -> None:
    from bottlegan.normalize.slides.folder import map_slide_folder, run_here

    outcomes = map_slide_folder(source, target, choice, options, run=run or run_here, progress=TerminalProgress())
    width = max(len(outcome.source.name) for outcome in outcomes)
    for outcome in outcomes:
        summary = "" if outcome.result is None else _summarize(outcome.result)
        typer.echo(f"{outcome.source.name:{width}}  {outcome.state:9}  {summary}".rstrip())
    failures = [outcome.error for outcome in outcomes if outcome.state == "failed"]
    report_failures(failures, len(outcomes), "slides", target)


def _summarize(result: "SlideResult") -> str:
    speed = result.megapixels / result.seconds
    verdict = f", style {result.note['verdict']}" if "verdict" in result.note else ""
    broken = f", {len(result.broken)} unreadable tile(s) left white" if result.broken else ""
    return f"{result.megapixels:.1f} MP in {result.seconds:.1f} s, {speed:.0f} MP/s{verdict}{broken}"
