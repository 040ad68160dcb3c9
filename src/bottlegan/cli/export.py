"""`bottlegan export`: a style's color map as an ONNX model, and as a script for QuPath."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottlegan.cli.options import DirectionOption, ModelOption, StyleOption, check_paths, find_model, open_style
from bottlegan.cli.progress import TerminalProgress
from bottlegan.core.errors import InputError
from bottlegan.core.files import check_apart, check_writable

if TYPE_CHECKING:
    from bottlegan.models.freeze import Direction
    from bottlegan.normalize.normalizer import Normalizer


def export(
    style: StyleOption = None,
    model: ModelOption = None,
    direction: DirectionOption = "normalize",
    everything: Annotated[bool, typer.Option("--everything", help="Map pen marks as well.")] = False,
    onnx: Annotated[
        Path | None, typer.Option(help="Model to write, FILE.onnx. It maps images (N, H, W, 3), uint8.")
    ] = None,
    qupath: Annotated[
        Path | None, typer.Option(help="Script to write, FILE.groovy. Its table, FILE.cube, is written beside it.")
    ] = None,
) -> None:
    """Write a style's color map as an ONNX model, as a script for QuPath, or as both.

    An ONNX file is checked on all 256^3 colors. It is kept only if fewer than one color in a thousand differs from
    BottleGAN's map, and by at most one level. A QuPath script has a coarse table, whose error is measured and printed.

    Example: bottlegan export --model model.safetensors --style lab-3 --onnx lab-3.onnx --qupath lab-3.groovy
    """
    if onnx is None and qupath is None:
        raise InputError("nothing to do; name a model to write with --onnx FILE.onnx, or a script with --qupath")
    check_paths(model)
    if onnx is not None:
        _check_target(onnx, ".onnx")
        import bottlegan.colormap.onnx  # noqa: F401 - a missing package is reported before any work
    if qupath is not None:
        _check_target(qupath, ".groovy")
        _check_target(qupath.with_suffix(".cube"), ".cube")
    check_apart([onnx, qupath, None if qupath is None else qupath.with_suffix(".cube")], [model])
    normalizer = open_style(find_model(model), style, everything=everything)
    if onnx is not None:
        _write_onnx(onnx, normalizer, direction)
    if qupath is not None:
        _write_script(qupath, normalizer, direction)


def _check_target(path: Path, ending: str) -> None:
    """Refuse a path that cannot be written to, before anything is computed."""
    if path.suffix != ending:
        raise InputError(f"{path}: the name must end in {ending}; change the name")
    check_writable(path)


def _write_onnx(path: Path, normalizer: "Normalizer", direction: "Direction") -> None:
    """Write a model, but only if it maps all colors like the kernel."""
    from bottlegan import __version__
    from bottlegan.colormap.onnx import MOST_OFF, MOST_SHARE, compare_onnx, make_onnx, write_onnx
    from bottlegan.core.files import replacing

    table = normalizer.color_map(direction)
    pen = "mapped" if table.network.ink is None else "left as it is"
    about = {"bottlegan": __version__, "style": normalizer.name, "direction": direction, "pen": pen}
    with replacing(path) as temporary:
        write_onnx(temporary, make_onnx(table.network, about))
        difference = compare_onnx(temporary, table, TerminalProgress())
        if not difference.tolerable:
            most = f"{MOST_OFF} level and {100 * MOST_SHARE:g} % of colors"
            typer.echo(f"bottlegan: {path}: {difference}; the limit is {most}, so it is not written", err=True)
            raise typer.Exit(1)
    typer.echo(f"{path}: {difference}")
    typer.echo(f"Wrote {path}.")


def _write_script(path: Path, normalizer: "Normalizer", direction: "Direction") -> None:
    """Write a script and, beside it, the table of colors that it applies."""
    from bottlegan import __version__
    from bottlegan.colormap.cube import write_cube
    from bottlegan.colormap.qupath import SIZE, make_script
    from bottlegan.core.files import write_text
    from bottlegan.normalize.cube import make_cube

    cube = path.with_suffix(".cube")
    table, deviations = make_cube(normalizer, SIZE, direction)
    script = make_script(cube, table.title, __version__)
    write_cube(cube, table)
    write_text(path, script)
    for deviation in deviations:
        typer.echo(f"{cube}: {deviation}")
    typer.echo(f"Wrote {path} and {cube.name}.")
