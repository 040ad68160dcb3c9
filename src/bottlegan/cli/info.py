"""`bottlegan info`: describe a slide, an image, a model, a network, or the progress of a federation."""

from pathlib import Path
from typing import Annotated

import typer

from bottlegan.cli.options import check_paths

SHOWN = 20
"""Most styles of a model, or rows of a run's tables, to list."""


def info(
    file: Annotated[
        Path,
        typer.Argument(
            help="Slide, image, model or network (.safetensors), folder of DICOM files, or folder of a run.",
            show_default=False,
        ),
    ],
) -> None:
    """Describe a slide, an image, a model, a network, or a federation's run.

    A slide: its levels, how it is stored and, if BottleGAN wrote it, the model, style and verdict. A model: its styles
    and how it was trained. A run, even an unfinished one: scores, losses, and which labs were left out or suspected.

    Example: bottlegan info slide.svs
    Example: bottlegan info run
    """
    check_paths(file)
    from bottlegan.slides.notes import list_dicom

    if levels := list_dicom(file):
        _show_slide(levels[0], file)
    elif file.is_dir():
        _show_run(file)
    elif file.suffix.lower() == ".safetensors":
        _show_model(file)
    else:
        _show_slide(file, file)


def _show_slide(file: Path, name: Path) -> None:
    from bottlegan.slides.notes import read_note
    from bottlegan.slides.reader import measure_downsample, open_slide

    with open_slide(file) as opened:
        typer.echo(f"{name}")
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
    note = read_note(name) or {}
    color_map = note.get("map")
    if isinstance(color_map, dict):
        typer.echo(f"made by        {note['software']}, {color_map.get('direction', 'unknown')}")
        for key in ("model", "model sha256", "style", "then", "like", "verdict", "reason", "pen"):
            if key in color_map:
                typer.echo(f"{key:14} {color_map[key]}")


def _show_run(folder: Path) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from bottlegan.quality.run_report import AGREEMENT, LABS, list_tables, read_run, write_run_report

    run, console = read_run(folder), Console(soft_wrap=True)
    typer.echo(f"{folder}: {run.status}")
    for content in list_tables(run):
        # Without lines between columns, all scores of any task fit into 80 characters.
        table = Table(title=f"\n{content.title}", title_justify="left", box=None, padding=(0, 1, 0, 0))
        for column in content.columns:
            table.add_column(column, overflow="fold")
        # A long table shows the worst labs, or the latest rounds and events.
        for row in content.rows[:SHOWN] if content.title in (LABS, AGREEMENT) else content.rows[-SHOWN:]:
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)
    typer.echo(f"Full report with curves: {write_run_report(run)}")


def _show_network(file: Path) -> None:
    from bottlegan.models.network_file import read_network_document
    from bottlegan.models.networks import name_factory

    document = read_network_document(file)
    task, arguments = document.task, document.network.arguments
    typer.echo(f"{file}")
    typer.echo(f"network        {name_factory(document.network, task)}, {arguments or 'default arguments'}")
    typer.echo(f"task           {task.kind}: {', '.join(task.classes)}")
    typer.echo(f"pixel          {'unknown' if task.micrometers is None else f'{task.micrometers:g} micrometers'}")
    wants = {"normalize": "images in the reference stain", "restain": "images as they are (trained in all styles)"}
    typer.echo(f"wants          {wants.get(document.mode, 'images as they are')}")
    if document.model:
        typer.echo(f"normalized by  {document.model}")
    typer.echo(f"temperature    {document.temperature:.3f}")
    typer.echo(f"sha256         {document.weights}")
    for key, score in document.scores.items():
        typer.echo(f"score          {key}: {score:.4f}")
    for key, value in document.record.items():
        typer.echo(f"record         {key}: {value}")


def _show_model(file: Path) -> None:
    from bottlegan.models.weights import is_network, read_document

    if is_network(file):
        _show_network(file)
        return
    document = read_document(file)
    form, styles = document.model.generator, document.styles
    typer.echo(f"{file}")
    hidden = f"{form.depth} hidden layers of {form.width}" if form.depth else "an affine map of densities"
    typer.echo(f"model          {document.model.paradigm}, {form.kind}, {form.statistics} statistics, {hidden}")
    typer.echo(f"code           {document.model.code_size} numbers a style")
    typer.echo(f"reference      {'unknown' if document.reference is None else document.reference.name}")
    typer.echo(f"onboards labs  {'yes' if document.encoders else 'with the encoders of the shipped prior'}")
    shown = ", ".join(styles[:SHOWN]) + (f" and {len(styles) - SHOWN} more" if len(styles) > SHOWN else "")
    typer.echo(f"styles         {len(styles)}" + (f": {shown}" if styles else ""))
    for key, value in document.record.items():
        typer.echo(f"record         {key}: {value}")
