"""`bottlegan normalize` and `bottlegan restain`: bring images from one stain to another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottlegan.cli.options import ModelOption, find_model
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
    stream,
)
from bottlegan.errors import InputError

if TYPE_CHECKING:
    from bottlegan.imaging.files import Levels
    from bottlegan.normalize.folder import ColorMap
    from bottlegan.normalize.normalizer import Normalizer

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
    seed: Annotated[int, typer.Option(help="The same seed gives the same images.")] = 0,
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

    Images in a folder are taken to be of one lab; each slide has its own style. What is not H&E is refused: an image is
    written as it is, a slide is not written.

    Example: bottlegan normalize lab-3/ normalized/ --like lab-1/
    """
    if to is not None and like is not None:
        raise InputError("--to and --like both name the style to go to; give one of them")
    file, run = find_model(model), choose_runner(source, workers, ray)
    if (options := find_slides(source, level, region, quality, kind, strict, run)) is not None:
        from bottlegan.normalize.slide_map import MapChoice

        choice = MapChoice(file, style, to, seed=seed, force=force, everything=everything, like=like)
        stream(source, target, choice, options, run)
        return
    wanted = None if to is None else _map_of(file, to, "restain")
    target_style = None if like is None else _fit_target(like, file, seed)
    if style is not None:
        content = _map_of(file, style, "normalize", target_style)
    elif each:
        content = _fitting_each(file, seed, force, target_style)
    else:
        content = _fitted(source, file, seed, force, target_style)
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
    workers: Workers = None,
    ray: Ray = None,
) -> None:
    """Bring images or slides in the reference stain to a style.

    Example: bottlegan restain reference/ as-lab-3/ --model model.safetensors --style lab-3
    """
    file, run = find_model(model), choose_runner(source, workers, ray)
    if (options := find_slides(source, level, region, quality, kind, strict, run)) is not None:
        from bottlegan.normalize.slide_map import MapChoice

        choice = MapChoice(file, style, direction="restain", everything=everything)
        stream(source, target, choice, options, run)
        return
    _run(source, target, _map_of(file, style, "restain"))


def _map_of(model: Path, style: str, direction: str, like: "Normalizer | None" = None) -> "ColorMap":
    """Return how a model of any paradigm maps images of a style that it knows."""
    import torch

    from bottlegan.imaging.tensors import from_batch, to_batch
    from bottlegan.models.files import load_model
    from bottlegan.models.paradigms import BottleGAN
    from bottlegan.normalize.normalizer import Normalizer

    network = load_model(model)
    if isinstance(network, BottleGAN):
        normalizer = _toward(Normalizer.from_model(network, style), like)
        return normalizer if direction == "normalize" else normalizer.restain
    code = network.codes[style].detach()
    run = network.normalize if direction == "normalize" else network.restain

    @torch.no_grad()
    def color_map(image: "Levels") -> "Levels":
        return from_batch(run(to_batch(image), code))[0]

    return color_map


def _fitted(source: Path, model: Path, seed: int, force: bool, like: "Normalizer | None") -> "ColorMap":
    """Return the normalizer of the images themselves, and say what is thought of it."""
    from bottlegan.normalize.normalizer import Normalizer

    normalizer = Normalizer.fit(source, model=model, seed=seed, progress=TerminalProgress(), force=force)
    if normalizer.diagnosis is not None:
        left = "; left as it is, unless you --force it" if normalizer.refused else ""
        typer.echo(f"{source}: {normalizer.diagnosis.verdict}: {normalizer.diagnosis.reason}{left}", err=True)
    return _toward(normalizer, like)


def _fit_target(like: Path, model: Path, seed: int) -> "Normalizer":
    """Return the normalizer of the images to go to; refuse what is not H&E."""
    from bottlegan.normalize.normalizer import Normalizer

    target = Normalizer.fit(like, model=model, seed=seed, name="target")
    if target.refused and target.diagnosis is not None:
        raise InputError(f"{like}: cannot be the style to go to: {target.diagnosis.reason}")
    return target


def _toward(normalizer: "Normalizer", like: "Normalizer | None") -> "Normalizer":
    """Return a normalizer that goes to the style of another, if there is one."""
    return normalizer if like is None else normalizer.like(like)


def _fitting_each(model: Path, seed: int, force: bool, like: "Normalizer | None") -> "ColorMap":
    """Return a map that fits a style to every image anew."""
    from bottlegan.models.paradigms import BottleGAN
    from bottlegan.normalize.normalizer import Normalizer

    network = BottleGAN.load(model)
    return lambda image: _toward(Normalizer.fit(image, model=network, seed=seed, force=force), like)(image)


def _run(source: Path, target: Path, color_map: "ColorMap") -> None:
    from bottlegan.normalize.folder import map_files

    written = map_files(source, target, color_map, TerminalProgress())
    typer.echo(f"Wrote {target}" + (f" with {len(written)} images." if source.is_dir() else "."))
