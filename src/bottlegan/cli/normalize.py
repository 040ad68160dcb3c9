"""`bottlegan normalize` and `bottlegan restain`: bring images from one stain to another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottlegan.cli.options import ModelOption, check_paths, find_model
from bottlegan.cli.progress import TerminalProgress
from bottlegan.cli.slides import (
    Everything,
    Format,
    Level,
    Part,
    Quality,
    Ray,
    Strict,
    Workers,
    choose_runner,
    find_slides,
    shows_slides,
    stream,
)
from bottlegan.core.errors import InputError

if TYPE_CHECKING:
    from bottlegan.normalize.choice import MapChoice

Input = Annotated[Path, typer.Argument(help="Image, slide, or folder of either.", show_default=False)]
Output = Annotated[Path, typer.Argument(help="Image, slide (.tiff) or folder to write.", show_default=False)]


def normalize(
    source: Input,
    target: Output,
    model: ModelOption = None,
    style: Annotated[
        str | None, typer.Option(help="The style of the images, if the model knows it; else it is fitted to them.")
    ] = None,
    to: Annotated[str | None, typer.Option(help="Go on from the reference stain to this style of the model.")] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            help="Go to the style of these images instead: an image, a folder or a slide.", show_default=False
        ),
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="Fit a style to each image, not one to all.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Map images even if their style is refused.")] = False,
    seed: Annotated[
        int | None, typer.Option(help="Decides which tiles of a slide a style is fitted to.", show_default="0")
    ] = None,
    level: Level = None,
    region: Part = None,
    quality: Quality = None,
    kind: Format = None,
    strict: Strict = False,
    everything: Everything = False,
    workers: Workers = None,
    ray: Ray = None,
) -> None:
    """Bring images or slides to the reference stain, or through it to another style. Nothing needs to be trained.

    Images in a folder are taken to be of one lab; each slide has its own style. What is not H&E is refused, and not
    written. Pen is left as it is.

    Example: bottlegan normalize lab-3/ normalized/ --like lab-1/
    """
    if to is not None and like is not None:
        raise InputError("--to and --like both name the style to go to; give one of them")
    if style is not None and (each or force):
        raise InputError("--each and --force are about fitting a style; leave them out, or --style")
    check_paths(source, like, model)
    run = choose_runner(source, workers, ray)
    slides = find_slides(source, level, region, quality, kind, strict, run)
    if each and (slides is not None or not source.is_dir()):
        raise InputError(f"{source}: --each is for a folder of images; leave it out, each slide has its own style")
    if seed is not None and not (slides is not None and style is None) and not (like and shows_slides(like)):
        raise InputError("--seed decides which tiles of a slide are looked at; leave it out, no slide is fitted here")
    from bottlegan.normalize.choice import MapChoice

    file = find_model(model)
    choice = MapChoice(file, style, to, seed=seed or 0, force=force, everything=everything, like=like)
    if slides is not None:
        stream(source, target, choice, slides, run)
    elif each:
        _map_each(source, target, choice)
    else:
        _map_images(source, target, choice)


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
    workers: Workers = None,
    ray: Ray = None,
) -> None:
    """Bring images or slides in the reference stain to a style. Pen is left as it is.

    Example: bottlegan restain reference/ as-lab-3/ --model model.safetensors --style lab-3
    """
    check_paths(source, model)
    run = choose_runner(source, workers, ray)
    slides = find_slides(source, level, region, quality, kind, strict, run)
    from bottlegan.normalize.choice import MapChoice

    choice = MapChoice(find_model(model), style, direction="restain", everything=everything)
    if slides is not None:
        stream(source, target, choice, slides, run)
    else:
        _map_images(source, target, choice)


def _map_images(source: Path, target: Path, choice: "MapChoice") -> None:
    """Map an image, or all images of a folder in one way, and say what is thought of it."""
    from bottlegan.normalize.folder import map_files, pair_files

    pairs = pair_files(source, target)
    color_map = choice.prepare()(source)
    if "verdict" in color_map.note:
        typer.echo(f"{source}: {color_map.note['verdict']}: {color_map.note['reason']}", err=True)
    map_files(pairs, lambda _: color_map.convert, TerminalProgress())
    typer.echo(f"Wrote {target}" + (f" with {len(pairs)} images." if source.is_dir() else "."))


def _map_each(source: Path, target: Path, choice: "MapChoice") -> None:
    """Map each image of a folder in its own way; those that are refused are named, and not written."""
    from bottlegan.normalize.folder import map_files, pair_files

    make_map, pairs = choice.prepare(), pair_files(source, target)
    refused = map_files(pairs, lambda image: make_map(image).convert, TerminalProgress())
    for error in refused:
        typer.echo(str(error), err=True)
    written = len(pairs) - len(refused)
    typer.echo(f"Wrote {target} with {written} of {len(pairs)} images." if written else "Wrote nothing.")
    if refused:
        raise typer.Exit(2)
