"""`bottlegan normalize` and `bottlegan restain`: bring images from one stain to another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottlegan.cli.progress import TerminalProgress

if TYPE_CHECKING:
    from bottlegan.normalize.folder import ColorMap

Input = Annotated[Path, typer.Argument(help="Image, or folder of images.", show_default=False)]
Output = Annotated[Path, typer.Argument(help="Image or folder to write.", show_default=False)]
Model = Annotated[Path, typer.Option(help="Model file.", show_default=False)]


def normalize(
    source: Input,
    target: Output,
    model: Model,
    style: Annotated[str, typer.Option(help="The style that the images are in.", show_default=False)],
    to: Annotated[str | None, typer.Option(help="Go on from the reference stain to this style.")] = None,
) -> None:
    """Bring images of a known style to the reference stain, or through it to another style.

    Example: bottlegan normalize lab-3/ normalized/ --model model.safetensors --style lab-3
    """
    import torch

    from bottlegan.models.files import load_model

    network = load_model(model)
    known = network.codes[style].detach()
    wanted = None if to is None else network.codes[to].detach()

    @torch.no_grad()
    def color_map(images: torch.Tensor) -> torch.Tensor:
        content = network.normalize(images, known)
        return content if wanted is None else network.restain(content, wanted)

    _run(source, target, color_map)


def restain(
    source: Input,
    target: Output,
    model: Model,
    style: Annotated[str, typer.Option(help="The style to bring the images to.", show_default=False)],
) -> None:
    """Bring images in the reference stain to a style.

    Example: bottlegan restain reference/ as-lab-3/ --model model.safetensors --style lab-3
    """
    import torch

    from bottlegan.models.files import load_model

    network = load_model(model)
    wanted = network.codes[style].detach()

    @torch.no_grad()
    def color_map(images: torch.Tensor) -> torch.Tensor:
        return network.restain(images, wanted)

    _run(source, target, color_map)


def _run(source: Path, target: Path, color_map: "ColorMap") -> None:
    from bottlegan.normalize.folder import map_files

    written = map_files(source, target, color_map, TerminalProgress())
    typer.echo(f"Wrote {target}" + (f" with {len(written)} images." if source.is_dir() else "."))
