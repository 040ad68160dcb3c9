"""`bottlegan drift`: whether a lab still stains as it did."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bottlegan.cli.options import ModelOption, find_model
from bottlegan.cli.progress import TerminalProgress

if TYPE_CHECKING:
    from bottlegan.quality.drift import Drift


def drift(
    folder: Annotated[
        Path, typer.Argument(help="Folder with one sub-folder of images per batch, named by date.", show_default=False)
    ],
    style: Annotated[
        str,
        typer.Option(help="A style of the model to compare with; another name is only a label.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="Folder for drift.html, drift.csv and drift.json.", show_default=False)],
    model: ModelOption = None,
    baseline: Annotated[int, typer.Option(min=1, help="The first so many batches are as they should be.")] = 5,
) -> None:
    """Watch a lab's stain over time: fit the style of each batch, and mark those that left the control limit.

    Exit status is 0 whether or not there is drift; drift.json says which batches are out of control.

    Example: bottlegan drift batches/ --style our-lab --out drift/
    """
    from bottlegan.models.document import check_name
    from bottlegan.models.paradigms import BottleGAN
    from bottlegan.quality.drift import fit_batches, list_batches, measure_drift
    from bottlegan.quality.drift_report import say_result, write_drift

    check_name(style)
    batches = list_batches(folder)
    network = BottleGAN.load(find_model(model))
    fitted = fit_batches(batches, network, TerminalProgress())
    result = measure_drift(fitted, network, style, baseline)
    page = write_drift(result, out)
    _show(result, Console())
    typer.echo(say_result(result))
    typer.echo(f"Wrote {page}, drift.csv and drift.json.")


def _show(result: "Drift", console: Console) -> None:
    table = Table(title=escape(f"Stain drift: {result.style}"))
    for heading in ("batch", "images", "verdict", "code distance", "ΔE", ""):
        table.add_column(heading, justify="right" if heading in ("images", "code distance", "ΔE") else "left")
    for point in result.points:
        seen = "" if point.delta_e is None else f"{point.delta_e:.2f}"
        code = "" if point.code_distance is None else f"{point.code_distance:.3f}"
        state = "[bold red]out of control[/]" if point.out_of_control else "baseline" if point.in_baseline else ""
        table.add_row(escape(point.batch.name), str(point.batch.images), point.batch.verdict.value, code, seen, state)
    if result.limit is not None:
        table.add_section()
        table.add_row("limit", "", "", f"{result.limit.upper:.3f}", "", "")
    console.print(table)
