"""`bottlegan normalize` and `bottlegan restain`: bring images from one stain to another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bottlegan.cli.options import ModelOption, find_model
from bottlegan.cli.progress import TerminalProgress

if TYPE_CHECKING:
    from bottlegan.normalize.folder import ColorMap
    from bottlegan.normalize.slide import SlideOptions, SlideResult
    from bottlegan.normalize.slide_map import MapChoice
    from bottlegan.slides.image import Levels

Input = Annotated[Path, typer.Argument(help="Image, slide, or folder of either.", show_default=False)]
Output = Annotated[Path, typer.Argument(help="Image, slide (.tiff) or folder to write.", show_default=False)]
SLIDES = "Slides"
Level = Annotated[
    int | None,
    typer.Option(help="Level of the slide to read.", show_default="0, the finest", min=0, rich_help_panel=SLIDES),
]
Part = Annotated[
    str | None,
    typer.Option(
        "--region",
        help="Part of that level, in its pixels.",
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
    Literal["tiff", "ome"] | None,
    typer.Option(
        "--format",
        help="Flat pyramid, as OpenSlide reads it, or OME-TIFF.",
        show_default="by the output's name",
        rich_help_panel=SLIDES,
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Stop at a tile that cannot be read; else it is white.", rich_help_panel=SLIDES)
]
Everything = Annotated[
    bool,
    typer.Option("--everything", help="Map glass around the tissue and pen on it as well.", rich_help_panel=SLIDES),
]


def normalize(
    source: Input,
    target: Output,
    model: ModelOption = None,
    style: Annotated[
        str | None, typer.Option(help="The style of the images, if the model knows it; else it is fitted to them.")
    ] = None,
    to: Annotated[str | None, typer.Option(help="Go on from the reference stain to this style of the model.")] = None,
    each: Annotated[bool, typer.Option("--each", help="Fit a style to each image, not one to all.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Map images even if their style is refused.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same images.")] = 0,
    level: Level = None,
    region: Part = None,
    quality: Quality = None,
    kind: Format = None,
    strict: Strict = False,
    everything: Everything = False,
) -> None:
    """Bring images or slides to the reference stain, or through it to another style. Nothing needs to be trained.

    Images in a folder are taken to be of one lab; each slide has its own style. What is not H&E is refused: an image is
    written as it is, a slide is not written.

    Example: bottlegan normalize lab-3/ normalized/
    """
    file = find_model(model)
    if (options := _find_slides(source, level, region, quality, kind, strict)) is not None:
        from bottlegan.normalize.slide_map import MapChoice

        choice = MapChoice(file, style, to, seed=seed, force=force, everything=everything)
        _stream(source, target, choice, options)
        return
    wanted = None if to is None else _map_of(file, to, "restain")
    if style is not None:
        content = _map_of(file, style, "normalize")
    elif each:
        content = _fitting_each(file, seed, force)
    else:
        content = _fitted(source, file, seed, force)
    _run(source, target, content if wanted is None else lambda image: wanted(content(image)))


def restain(
    source: Input,
    target: Output,
    style: Annotated[str, typer.Option(help="The style to bring the images to.", show_default=False)],
    model: ModelOption = None,
    level: Level = None,
    region: Part = None,
    quality: Quality = None,
    kind: Format = None,
    strict: Strict = False,
    everything: Everything = False,
) -> None:
    """Bring images or slides in the reference stain to a style.

    Example: bottlegan restain reference/ as-lab-3/ --model model.safetensors --style lab-3
    """
    file = find_model(model)
    if (options := _find_slides(source, level, region, quality, kind, strict)) is not None:
        from bottlegan.normalize.slide_map import MapChoice

        _stream(source, target, MapChoice(file, style, direction="restain", everything=everything), options)
        return
    _run(source, target, _map_of(file, style, "restain"))


def _find_slides(
    source: Path,
    level: int | None,
    region: str | None,
    quality: int | None,
    kind: Literal["tiff", "ome"] | None,
    strict: bool,
) -> "SlideOptions | None":
    """Return how to stream the input, if it is a slide or is to be treated as one; None for images."""
    from bottlegan.normalize.slide import SlideOptions
    from bottlegan.normalize.slide_folder import list_slides
    from bottlegan.slides.reader import is_slide
    from bottlegan.slides.writer import QUALITY

    asked = strict or any(each is not None for each in (level, region, quality, kind))
    if not asked and not (list_slides(source) if source.is_dir() else is_slide(source)):
        return None
    return SlideOptions(level or 0, region, QUALITY if quality is None else quality, kind, strict)


def _stream(source: Path, target: Path, choice: "MapChoice", options: "SlideOptions") -> None:
    """Map a slide, or each slide of a folder, and say what became of it."""
    from bottlegan.normalize.slide import check_slide, map_slide

    if source.is_dir():
        _stream_folder(source, target, choice, options)
        return
    check_slide(source, target, options)
    progress = TerminalProgress()
    result = map_slide(source, target, choice.prepare(progress)(source), options, progress)
    if "verdict" in result.note:
        typer.echo(f"{source}: {result.note['verdict']}: {result.note['reason']}", err=True)
    for part in result.broken:
        typer.echo(f"white instead: {part.error}", err=True)
    typer.echo(f"Wrote {target}: {_summarize(result)}.")


def _stream_folder(source: Path, target: Path, choice: "MapChoice", options: "SlideOptions") -> None:
    from bottlegan.normalize.slide_folder import map_slide_folder

    outcomes = map_slide_folder(source, target, choice.prepare(), options, TerminalProgress())
    width = max(len(each.source.name) for each in outcomes)
    for each in outcomes:
        told = each.error if each.result is None else _summarize(each.result)
        typer.echo(f"{each.source.name:{width}}  {each.state:9}  {' '.join(told.split())}".rstrip())
    failed = sum(each.state == "failed" for each in outcomes)
    typer.echo(f"{len(outcomes) - failed} of {len(outcomes)} slides are in {target}.")
    if failed:
        raise typer.Exit(2)


def _summarize(result: "SlideResult") -> str:
    speed = result.megapixels / result.seconds
    verdict = f", style {result.note['verdict']}" if "verdict" in result.note else ""
    broken = f", {len(result.broken)} tiles could not be read and are white" if result.broken else ""
    return f"{result.megapixels:.1f} MP in {result.seconds:.1f} s, {speed:.0f} MP/s{verdict}{broken}"


def _map_of(model: Path, style: str, direction: str) -> "ColorMap":
    """Return how a model of any paradigm maps images of a style that it knows."""
    import torch

    from bottlegan.models.files import load_model
    from bottlegan.models.paradigms import BottleGAN
    from bottlegan.normalize.normalizer import Normalizer
    from bottlegan.slides.image import from_batch, to_batch

    network = load_model(model)
    if isinstance(network, BottleGAN):
        normalizer = Normalizer.from_model(network, style)
        return normalizer if direction == "normalize" else normalizer.restain
    code = network.codes[style].detach()
    run = network.normalize if direction == "normalize" else network.restain

    @torch.no_grad()
    def color_map(image: "Levels") -> "Levels":
        return from_batch(run(to_batch(image), code))[0]

    return color_map


def _fitted(source: Path, model: Path, seed: int, force: bool) -> "ColorMap":
    """Return the normalizer of the images themselves, and say what is thought of it."""
    from bottlegan.normalize.normalizer import Normalizer

    normalizer = Normalizer.fit(source, model=model, seed=seed, progress=TerminalProgress(), force=force)
    if normalizer.diagnosis is not None:
        left = "; left as it is, unless you --force it" if normalizer.refused else ""
        typer.echo(f"{source}: {normalizer.diagnosis.verdict}: {normalizer.diagnosis.reason}{left}", err=True)
    return normalizer


def _fitting_each(model: Path, seed: int, force: bool) -> "ColorMap":
    """Return a map that fits a style to every image anew."""
    from bottlegan.models.paradigms import BottleGAN
    from bottlegan.normalize.normalizer import Normalizer

    network = BottleGAN.load(model)
    return lambda image: Normalizer.fit(image, model=network, seed=seed, force=force)(image)


def _run(source: Path, target: Path, color_map: "ColorMap") -> None:
    from bottlegan.normalize.folder import map_files

    written = map_files(source, target, color_map, TerminalProgress())
    typer.echo(f"Wrote {target}" + (f" with {len(written)} images." if source.is_dir() else "."))
