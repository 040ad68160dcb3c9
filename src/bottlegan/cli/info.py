"""`bottlegan info`: what a slide, an image, a model or a network is like, and how a federation goes."""

from pathlib import Path
from typing import Annotated

import typer

from bottlegan.cli.options import check_paths

SHOWN = 20
"""Styles of a model, and rows of a run's tables, that are listed."""


def info(
    file: Annotated[Path, typer.Argument(help="Slide, image, model, network, or folder of a run.", show_default=False)],
) -> None:
    """Say what levels a slide has and how it is stored, or what styles a model knows and how it was made.

    Of a federation's run, which may be going on: scores, losses, who was left out or is suspected, and why; with
    curves in report.html.

    Example: bottlegan info slide.svs
    Example: bottlegan info run
    """
    check_paths(file)
    if file.is_dir():
        _tell_run(file)
    elif file.suffix.lower() == ".safetensors":
        _tell_model(file)
    else:
        _tell_slide(file)


def _tell_slide(file: Path) -> None:
    from bottlegan.slides.reader import measure_downsample, open_slide

    with open_slide(file) as opened:
        typer.echo(f"{file}")
        typer.echo(f"format         {opened.kind}")
        size = "unknown" if opened.mpp is None else "{:.4g} x {:.4g} micrometers".format(*opened.mpp)
        typer.echo(f"pixel          {size}")
        typer.echo(f"color profile  {'none' if opened.icc is None else f'ICC, {len(opened.icc):,} bytes'}")
        for level, (width, height) in enumerate(opened.levels):
            tile = opened.tile(level)
            how = "decoded directly" if level in opened.direct else "decoded by OpenSlide"
            typer.echo(
                f"level {level:<8} {width:,} x {height:,} px, 1 : {measure_downsample(opened, level):.4g}, "
                f"tiles of {tile.width} x {tile.height} px{'' if opened.kind == 'image' else f', {how}'}"
            )


def _tell_run(folder: Path) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from bottlegan.quality.run_report import AGREEMENT, LABS, list_tables, read_run, write_run_report

    run, console = read_run(folder), Console(soft_wrap=True)
    typer.echo(f"{folder}: {run.status}")
    for found in list_tables(run):
        # Without lines between them, all scores of any task fit into 80 columns.
        table = Table(title=f"\n{found.title}", title_justify="left", box=None, padding=(0, 1, 0, 0))
        for column in found.columns:
            table.add_column(column, overflow="fold")
        # Of many rows, the worst labs, and the latest rounds and troubles.
        for row in found.rows[:SHOWN] if found.title in (LABS, AGREEMENT) else found.rows[-SHOWN:]:
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)
    typer.echo(f"Curves, and all of it: {write_run_report(run)}")


def _tell_network(file: Path) -> None:
    from bottlegan.models.network_file import read_network_document
    from bottlegan.models.networks import name_factory

    said = read_network_document(file)
    task = said.task
    typer.echo(f"{file}")
    typer.echo(f"network        {name_factory(said.network, task)}, {said.network.arguments or 'default arguments'}")
    typer.echo(f"task           {task.kind}: {', '.join(task.classes)}")
    typer.echo(f"pixel          {'unknown' if task.micrometers is None else f'{task.micrometers:g} micrometers'}")
    wants = {"normalize": "images in the reference stain", "restain": "images as they are (trained in all styles)"}
    typer.echo(f"wants          {wants.get(said.mode, 'images as they are')}")
    if said.model:
        typer.echo(f"normalized by  {said.model}")
    typer.echo(f"temperature    {said.temperature:.3f}")
    typer.echo(f"sha256         {said.weights}")
    for key, score in said.scores.items():
        typer.echo(f"score          {key}: {score:.4f}")
    for key, value in said.record.items():
        typer.echo(f"record         {key}: {value}")


def _tell_model(file: Path) -> None:
    from bottlegan.models.weights import is_network, read_document

    if is_network(file):
        _tell_network(file)
        return
    said = read_document(file)
    form, styles = said.model.generator, said.styles
    typer.echo(f"{file}")
    hidden = f"{form.depth} hidden layers of {form.width}" if form.depth else "an affine map of densities"
    typer.echo(f"model          {said.model.paradigm}, {form.kind}, {form.statistics} statistics, {hidden}")
    typer.echo(f"code           {said.model.code_size} numbers a style")
    typer.echo(f"reference      {'unknown' if said.reference is None else said.reference.name}")
    typer.echo(f"onboards labs  {'yes' if said.encoder else 'with the encoder of the shipped prior'}")
    shown = ", ".join(styles[:SHOWN]) + (f" and {len(styles) - SHOWN} more" if len(styles) > SHOWN else "")
    typer.echo(f"styles         {len(styles)}" + (f": {shown}" if styles else ""))
    for key, value in said.record.items():
        typer.echo(f"record         {key}: {value}")
