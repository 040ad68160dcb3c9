"""`bottlegan drift`: watch whether a lab's stain changes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bottlegan.cli.options import ModelOption, check_paths, find_model
from bottlegan.cli.progress import TerminalProgress
from bottlegan.core.files import check_apart, check_folder

if TYPE_CHECKING:
    from bottlegan.quality.drift import Drift


def drift(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder with one sub-folder of images per batch, named by date: batches/2026-01/*.png.",
            show_default=False,
        ),
    ],
    style: Annotated[
        str,
        typer.Option(
            help="Style of the model to compare with. A name that the model does not know is only a label.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for drift.html, drift.csv and drift.json.", show_default=False)],
    model: ModelOption = None,
    baseline: Annotated[int, typer.Option(min=1, help="Number of initial batches to use as the baseline.")] = 5,
) -> None:
    """Watch a lab's stain over time. Fits a style to each batch, and marks the batches beyond the control limit.

    The exit status is 0 with or without drift; drift.json lists the batches that are out of control.

    Example: bottlegan drift batches/ --style our-lab --out drift/
    """
    check_paths(folder, model)
    from bottlegan.models.document import check_name
    from bottlegan.models.paradigms import BottleGAN
    from bottlegan.quality.drift import fit_batches, list_batches, measure_drift
    from bottlegan.quality.drift_report import say_result, write_drift

    check_name(style)
    check_folder(out)
    check_apart([out], [folder])
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
        difference = "" if point.delta_e is None else f"{point.delta_e:.2f}"
        code = "" if point.code_distance is None else f"{point.code_distance:.3f}"
        state = "[bold red]out of control[/]" if point.out_of_control else "baseline" if point.in_baseline else ""
        table.add_row(
            escape(point.batch.name), str(point.batch.images), point.batch.verdict.value, code, difference, state
        )
    if result.limit is not None:
        table.add_section()
        table.add_row("limit", "", "", f"{result.limit.upper:.3f}", "", "")
    console.print(table)
