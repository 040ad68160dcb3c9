"""`bottlegan bench privacy`: what a curious server can tell of a lab."""

from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from bottlegan.cli.bench import DataOption, write_figures
from bottlegan.cli.options import JsonOption
from bottlegan.cli.progress import TerminalProgress


def privacy(
    data: DataOption = None,
    json_file: JsonOption = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds in each run.", min=2)] = 25,
    images: Annotated[
        int, typer.Option(help="Number of each lab's training images that the attacks look for.", min=1)
    ] = 12,
    scale: Annotated[
        Literal["smoke", "cpu"],
        typer.Option(help="smoke: a few labs with procedural tissue. cpu: the labs of Table 1."),
    ] = "cpu",
) -> None:
    """Attack what a curious server sees, with and without each protection: membership, property, which lab.

    Example: bottlegan bench privacy --data peso/ --json privacy.json
    """
    from bottlegan.bench.privacy import bench_privacy

    figures: dict[str, Any] = bench_privacy(scale, data, rounds, images, TerminalProgress())
    write_figures(figures, json_file)
    headings = ("update alignment", "loss drop", "final loss", "property, r", "lab told", "IOU", "epsilon")
    table = Table("protection", *headings)
    for name, row in figures["rows"].items():
        table.add_row(name, *("-" if row[key] is None else f"{row[key]:.3g}" for key in headings))
    Console().print(table)
    style_headings = ("lab told", "epithelium, r", "levels")
    table = Table("noise on style codes", *style_headings)
    for name, row in figures["styles"]["rows"].items():
        table.add_row(name, *(f"{row[key]:.3g}" for key in style_headings))
    Console().print(table)
