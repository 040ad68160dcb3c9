"""`bottlegan train`: learn the styles of many labs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bottlegan.cli.progress import TerminalProgress
from bottlegan.core.errors import InputError
from bottlegan.core.progress import EventLog


class Preset(StrEnum):
    """Ready-made settings."""

    DEFAULT = "default"
    PAPER = "paper"


def train(
    labs: Annotated[Path, typer.Argument(help="Folder with one sub-folder of images per lab.", show_default=False)],
    reference: Annotated[Path, typer.Option(help="Folder of images in the reference stain.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Model file to write, ending in .safetensors.", show_default=False)],
    preset: Annotated[Preset, typer.Option(help="default: best measured; paper: as published.")] = Preset.DEFAULT,
    config: Annotated[Path | None, typer.Option(help="TOML file with training settings, instead of a preset.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same model.")] = 0,
    style_per_image: Annotated[bool, typer.Option("--style-per-image", help="Each image in LABS is a lab.")] = False,
    device: Annotated[str, typer.Option(help="Where to train: cpu or cuda.")] = "cpu",
) -> None:
    """Train a model between the images of each lab and a reference set. No pairs, no labels.

    A run that was interrupted goes on where it was when the same command is given again.

    Example: bottlegan train labs/ --reference reference/ --out model.safetensors
    """
    from bottlegan.core.config import load
    from bottlegan.data.patches import list_labs, list_patches
    from bottlegan.models.files import save_model
    from bottlegan.training.gan import PRESETS, TrainConfig
    from bottlegan.training.gan import train as run

    if out.suffix != ".safetensors":
        raise InputError(f"{out}: a model file must end in .safetensors; name it so")
    chosen = PRESETS[preset.value] if config is None else load(TrainConfig, config)
    images = {
        name: [patch.read_image() for patch in patches] for name, patches in list_labs(labs, style_per_image).items()
    }
    public = [patch.read_image() for patch in list_patches(reference)]
    checkpoint = out.with_suffix(".checkpoint")
    with EventLog(out.with_suffix(".jsonl")) as log:
        model = run(images, public, chosen, seed, progress=TerminalProgress(log), checkpoint=checkpoint, device=device)
    save_model(model.cpu(), out, {"seed": seed, "styles": len(images), "reference_images": len(public)})
    checkpoint.unlink(missing_ok=True)
    typer.echo(f"Wrote {out} with {len(images)} styles.")
