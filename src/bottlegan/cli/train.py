"""`bottlegan train`: learn the styles of many labs."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from bottlegan.cli.options import ConfigOption, SetOption, check_model_path, check_paths, load_settings
from bottlegan.cli.progress import TerminalProgress
from bottlegan.core.errors import InputError
from bottlegan.core.files import check_apart
from bottlegan.core.progress import EventLog

Preset = Literal["default", "paper"]


def train(
    labs: Annotated[
        Path,
        typer.Argument(
            help="Folder with one sub-folder of images per lab: labs/lab-1/*.png, labs/lab-2/*.png.", show_default=False
        ),
    ],
    reference: Annotated[Path, typer.Option(help="Folder of images in the reference stain.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Model file to write, ending in .safetensors.", show_default=False)],
    preset: Annotated[
        Preset | None,
        typer.Option(help="default: the best that we measured. paper: as published.", show_default="default"),
    ] = None,
    config: ConfigOption = None,
    changes: SetOption = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of training steps.", show_default="that of the preset", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same model.")] = 0,
    style_per_image: Annotated[
        bool, typer.Option("--style-per-image", help="Each image in LABS is its own lab.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where to train: cpu or cuda.")] = "cpu",
) -> None:
    """Train a model between the images of each lab and a reference set. It needs no pairs and no labels.

    Repeat the same command to resume an interrupted run.

    Example: bottlegan train labs/ --reference reference/ --out model.safetensors
    Example: bottlegan train labs/ --reference reference/ --out model.safetensors --steps 200 --set batch=16
    """
    check_model_path(out)
    checkpoint, log_file = out.with_suffix(".checkpoint"), out.with_suffix(".jsonl")
    check_paths(labs, reference, config)
    check_apart([out, checkpoint, log_file], [labs, reference, config])
    if preset is not None and config is not None:
        raise InputError("--preset and --config both say how to train; give one of them")
    _check_device(device)
    from bottlegan.core.config import change, parse, to_values
    from bottlegan.data.patches import list_labs, list_patches
    from bottlegan.models.files import save_model
    from bottlegan.training.gan import PRESETS, TrainConfig
    from bottlegan.training.gan import train as run

    if config is None:
        chosen = parse(TrainConfig, change(to_values(PRESETS[preset or "default"]), changes or ()), "settings")
    else:
        chosen = load_settings(TrainConfig, config, changes)
    if steps is not None:
        chosen = replace(chosen, steps=steps, warm_steps=min(steps, chosen.warm_steps))
    images = {
        name: [patch.read_image() for patch in patches] for name, patches in list_labs(labs, style_per_image).items()
    }
    public = [patch.read_image() for patch in list_patches(reference)]
    with EventLog(log_file) as log:
        model = run(images, public, chosen, seed, progress=TerminalProgress(log), checkpoint=checkpoint, device=device)
    save_model(model.cpu(), out, {"seed": seed, "styles": len(images), "reference_images": len(public)})
    checkpoint.unlink(missing_ok=True)
    typer.echo(f"Wrote {out} with {len(images)} styles.")


def _check_device(name: str) -> None:
    """Refuse a device that this machine does not have."""
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0][:200]
        raise InputError(f"--device {name}: cannot be used here ({reason}); use cpu") from None
