"""`bottlegan synth`: slides and patches of procedural tissue, to try everything without data."""

from pathlib import Path
from typing import Annotated

import typer

from bottlegan import __version__
from bottlegan.cli.progress import TerminalProgress

synth = typer.Typer(help="Draw slides and patches, to try everything without data.", no_args_is_help=True)

Seed = Annotated[int, typer.Option(help="Seed for tissue and style. The same seed gives the same bytes.")]
StyleSeed = Annotated[
    int | None, typer.Option(help="Use the style of the lab with this seed.", show_default="that of --seed")
]


@synth.command()
def slide(
    target: Annotated[Path, typer.Argument(help="Slide to write, ending in .tiff.", show_default=False)],
    size: Annotated[int, typer.Option(help="Side of the slide, in pixels of 0.5 um.")] = 20_000,
    seed: Seed = 0,
    style_seed: StyleSeed = None,
    quality: Annotated[int, typer.Option(help="Quality of the JPEG tiles.", min=1, max=100)] = 80,
) -> None:
    """Draw a slide: a few pieces of tissue on glass, as a pyramid of any size.

    Example: bottlegan synth slide slide.tiff --size 20000 --seed 1
    """
    from bottlegan.simulation.lab_folder import draw_lab
    from bottlegan.simulation.slide import write_slide

    style = draw_lab(seed if style_seed is None else style_seed)
    note = {"software": f"bottlegan {__version__}"}
    write_slide(target, size, seed, style, quality=quality, note=note, progress=TerminalProgress())
    summary = f"{size} x {size} px in the style of {style.name}, {target.stat().st_size / 1e6:.1f} MB"
    typer.echo(f"Wrote {target}, {summary}. Try: bottlegan normalize {target} normalized.tiff")


@synth.command()
def lab(
    folder: Annotated[Path, typer.Argument(help="New folder to write to.", show_default=False)],
    patches: Annotated[int, typer.Option(help="Number of patches.")] = 16,
    size: Annotated[int, typer.Option(help="Side of a patch, in pixels of 1 um.")] = 448,
    masks: Annotated[
        bool, typer.Option("--masks", help="Write a mask of class ids beside each patch: 1 is epithelium.")
    ] = False,
    truth: Annotated[
        Path | None,
        typer.Option(help="New folder for the same tissue in the reference stain.", show_default=False),
    ] = None,
    seed: Seed = 0,
    style_seed: StyleSeed = None,
) -> None:
    """Draw a lab: a folder of patches in one style. Each seed is another lab.

    With --truth, `bottlegan evaluate` can score how well the lab was normalized.

    Example: bottlegan synth lab lab-1 --patches 16 --masks --seed 1
    Example: bottlegan synth lab lab-1 --truth truth-1 --seed 1
    """
    from bottlegan.simulation.lab_folder import draw_lab, write_lab

    style = draw_lab(seed if style_seed is None else style_seed)
    write_lab(folder, patches, size, seed, style, masks=masks, truth=truth, progress=TerminalProgress())
    summary = f"{patches} patch(es){' with masks' if masks else ''} in the style of {style.name}"
    typer.echo(f"Wrote {folder}, {summary}. Try: bottlegan normalize {folder} normalized")
    if truth is not None:
        typer.echo(
            f"Wrote {truth}, the same tissue in the reference stain. Then: bottlegan evaluate normalized {truth}"
        )
