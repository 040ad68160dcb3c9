"""`bottlegan normalize` and `bottlegan restain`: bring images from one stain to another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottlegan.cli.options import ModelOption, check_paths, find_model, report_failures
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
from bottlegan.core.files import check_apart

if TYPE_CHECKING:
    from bottlegan.normalize.choice import MapChoice

Input = Annotated[
    Path,
    typer.Argument(
        metavar="INPUT",
        help="An image, a slide, a folder of images of one lab (lab-3/*.png), or a folder of slides.",
        show_default=False,
    ),
]
Output = Annotated[
    Path,
    typer.Argument(
        metavar="OUTPUT",
        help="Output to write: an image (.png, .jpg, .tiff, .webp), a slide (.tiff), or a folder if INPUT is one.",
        show_default=False,
    ),
]


def normalize(
    source: Input,
    target: Output,
    model: ModelOption = None,
    style: Annotated[
        str | None, typer.Option(help="Style of the images, if the model knows it. Otherwise it is fitted to them.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="Continue from the reference stain to this style of the model.")
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            help="Use the style of these images instead of the reference stain: an image, a folder or a slide.",
            show_default=False,
        ),
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="Fit a style to each image, instead of one to all.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Map images even if their style is refused.")] = False,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed for choosing the tiles that a slide's style is fitted to.", show_default="0"),
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
    """Bring images or slides to the reference stain, or to another style. Nothing needs to be trained.

    All images in a folder must come from one lab: one style is fitted to them. Each slide gets its own style. Images
    that are not H&E are refused and not written. Pen marks stay unchanged. Masks (a_mask.png) are copied along.

    Example: bottlegan normalize lab-3/ normalized/ --like lab-1/
    """
    if to is not None and like is not None:
        raise InputError("--to and --like both name the target style; give one of them")
    if style is not None and (each or force):
        raise InputError("--each and --force apply when a style is fitted; leave them out, or leave out --style")
    check_paths(source, like, model)
    check_apart([target], [source, like, model])
    run = choose_runner(source, workers, ray)
    slides = find_slides(source, level, region, quality, kind, strict, run)
    if each and (slides is not None or not source.is_dir()):
        raise InputError(f"{source}: --each is for a folder of images; leave it out, each slide has its own style")
    if seed is not None and not (slides is not None and style is None) and not (like and shows_slides(like)):
        raise InputError("--seed chooses the tiles of a slide to fit, but no slide is fitted here; leave it out")
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
    style: Annotated[str, typer.Option(help="Style to bring the images to.", show_default=False)],
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
    """Bring images or slides in the reference stain to a style. Pen marks stay unchanged.

    Example: bottlegan restain reference/ as-lab-3/ --model model.safetensors --style lab-3
    """
    check_paths(source, model)
    check_apart([target], [source, model])
    run = choose_runner(source, workers, ray)
    slides = find_slides(source, level, region, quality, kind, strict, run)
    from bottlegan.normalize.choice import MapChoice

    choice = MapChoice(find_model(model), style, direction="restain", everything=everything)
    if slides is not None:
        stream(source, target, choice, slides, run)
    else:
        _map_images(source, target, choice)


def _map_images(source: Path, target: Path, choice: "MapChoice") -> None:
    """Map an image, or all images of a folder with one map, and print the verdict."""
    from bottlegan.normalize.folder import map_files, pair_files

    pairs = pair_files(source, target)
    color_map = choice.prepare()(source)
    if "verdict" in color_map.note:
        typer.echo(f"{source}: {color_map.note['verdict']}: {color_map.note['reason']}", err=True)
    failures = map_files(pairs, lambda _: color_map.convert, TerminalProgress())
    if not source.is_dir():
        if failures:
            raise failures[0]
        typer.echo(f"Wrote {target}.")
        return
    report_failures(failures, len(pairs), "images", target)


def _map_each(source: Path, target: Path, choice: "MapChoice") -> None:
    """Map each image of a folder with its own map."""
    from bottlegan.normalize.folder import map_files, pair_files

    make_map, pairs = choice.prepare(), pair_files(source, target)
    failures = map_files(pairs, lambda image: make_map(image).convert, TerminalProgress())
    report_failures(failures, len(pairs), "images", target)
