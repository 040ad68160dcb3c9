"""`bottlegan predict`: a trained network on images, folders and slides."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottlegan.cli.options import AllowOption, ModelOption, check_paths, report_failures
from bottlegan.cli.progress import TerminalProgress
from bottlegan.cli.slides import SLIDES, shows_images, shows_slides
from bottlegan.core.errors import InputError
from bottlegan.core.files import check_apart

if TYPE_CHECKING:
    from bottlegan.normalize.choice import MakeMap
    from bottlegan.predict.predictor import Predictor
    from bottlegan.predict.slides import SlideChoice, SlidePrediction


def predict(
    network: Annotated[
        Path, typer.Argument(help="Network that a federation wrote: run/network.safetensors.", show_default=False)
    ],
    source: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="An image, a slide, a folder of images of one lab (lab-3/*.png), or a folder of slides.",
            show_default=False,
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT",
            help="Output to write: a mask (.png) of an image, a map (.tiff) of a slide, or a folder if INPUT is one.",
            show_default=False,
        ),
    ],
    model: ModelOption = None,
    style: Annotated[
        str | None, typer.Option(help="Style of the images, if the model knows it. Otherwise it is fitted to them.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also write a map of each class's probability.")
    ] = False,
    level: Annotated[
        int | None,
        typer.Option(
            help="Level of the slide to read, without scaling.",
            show_default="the resolution that the network was trained at",
            min=0,
            rich_help_panel=SLIDES,
        ),
    ] = None,
    allow: AllowOption = None,
    force: Annotated[bool, typer.Option("--force", help="Predict even if the style is refused.")] = False,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed for choosing the tiles that a slide's style is fitted to.", show_default="0"),
    ] = None,
) -> None:
    """Predict the class of each pixel or patch with a trained network. Images are normalized first if it needs that.

    An image becomes a mask of class ids and a table of areas. A slide becomes a pyramid of class ids, outlines for
    QuPath (.geojson) and a table (.csv). All images in a folder must come from one lab. Each slide gets its own style.

    Example: bottlegan predict run/network.safetensors slide.svs epithelium.tiff
    """
    check_paths(network, source, model)
    check_apart([target], [network, source, model])
    slides = shows_slides(source)
    if level is not None and not slides and source.is_dir():
        raise InputError(f"{source}: holds no slide; leave out --level")
    if style is not None and force:
        raise InputError("--force applies when a style is fitted; leave it out, or leave out --style")
    from bottlegan.predict.predictor import Predictor

    predictor = Predictor.load(network, model=model, style=style, allowed=allow or ())
    if (force or seed is not None) and not predictor.normalizes:
        raise InputError(f"{network}: takes images in any stain and fits no style; leave out --force and --seed")
    make_map = choose_map(predictor, style, seed or 0, force)
    if not slides and level is None:
        _predict_images(predictor, source, target, make_map, probabilities)
        return
    from bottlegan.predict.slides import SlideChoice

    choice = SlideChoice(level, probabilities)
    if source.is_dir():
        _predict_folder(predictor, source, target, make_map, choice)
    else:
        _tell(_predict_slide(predictor, source, target, make_map, choice), target, source)


def choose_map(predictor: "Predictor", style: str | None, seed: int, force: bool) -> "MakeMap | None":
    """Return the function that finds the input's color map; None for a network that takes images in any stain."""
    if not predictor.normalizes:
        return None
    from bottlegan.normalize.choice import MapChoice

    return MapChoice(predictor.model, style, seed=seed, force=force).prepare()


def _predict_images(
    predictor: "Predictor", source: Path, target: Path, make_map: "MakeMap | None", probabilities: bool
) -> None:
    from bottlegan.predict.images import check_output, predict_images

    check_output(predictor, source, target)
    if make_map is not None:
        color_map = make_map(source)
        predictor = predictor.using(color_map.convert)
        if "verdict" in color_map.note:
            typer.echo(f"{source}: {color_map.note['verdict']}: {color_map.note['reason']}", err=True)
    done = predict_images(predictor, source, target, probabilities=probabilities, progress=TerminalProgress())
    total: dict[str, int] = {}
    for counts in done.counts.values():
        total = {name: total.get(name, 0) + count for name, count in counts.items()}
    what = "pixels" if predictor.task.kind == "segmentation" else "images"
    typer.echo(f"{_share(total)} of the {what}; images: {len(done.counts)}.")
    if not source.is_dir():
        typer.echo(f"Wrote {target}.")
        return
    report_failures(done.failures, len(done.counts) + len(done.failures), "images", target)


def _predict_slide(
    predictor: "Predictor", source: Path, target: Path, make_map: "MakeMap | None", choice: "SlideChoice"
) -> "SlidePrediction":
    from bottlegan.predict.patches import predict_patches
    from bottlegan.predict.slides import predict_slide

    work = predict_slide if predictor.task.kind == "segmentation" else predict_patches
    return work(predictor, source, target, make_map=make_map, choice=choice, progress=TerminalProgress())


def _predict_folder(
    predictor: "Predictor", source: Path, target: Path, make_map: "MakeMap | None", choice: "SlideChoice"
) -> None:
    """Predict each slide of a folder. Slides that fail are named, and the others are written."""
    from bottlegan.core.files import make_folder
    from bottlegan.slides.reader import list_slides

    if shows_images(source):
        raise InputError(f"{source}: holds slides and images; give a folder of either")
    make_folder(target)
    slides, failures = list_slides(source), []
    for slide in slides:
        try:
            done = _predict_slide(predictor, slide, target / f"{slide.stem}.tiff", make_map, choice)
        except InputError as error:
            failures.append(error)
        else:
            _tell(done, target / f"{slide.stem}.tiff", slide)
    report_failures(failures, len(slides), "slides", target)


def _tell(done: "SlidePrediction", target: Path, source: Path) -> None:
    if "verdict" in done.note:
        typer.echo(f"{source}: {done.note['verdict']}: {done.note['reason']}", err=True)
    for part in done.broken:
        typer.echo(f"treated as glass: {part.error}", err=True)
    speed = done.megapixels / done.seconds
    beside = ", ".join(file.name for file in done.files[1:])
    took = f"{done.megapixels:.1f} MP in {done.seconds:.1f} s, {speed:.1f} MP/s"
    typer.echo(f"Wrote {target}: {_share(done.counts)}; {took}.")
    typer.echo(f"Beside it: {beside}.")


def _share(counts: Mapping[str, int]) -> str:
    total = max(1, sum(counts.values()))
    return ", ".join(f"{name} {count / total:.1%}" for name, count in counts.items())
