"""`bottlegan bench`: ours and the peers in one run, as ratios."""

import json
from pathlib import Path
from typing import Annotated

import typer

from bottlegan.cli.progress import TerminalProgress
from bottlegan.files import write_text

bench = typer.Typer(help="Measure ours and the peers in one run.", no_args_is_help=True)


@bench.command()
def train(
    data: Annotated[Path | None, typer.Option(help="Folder of PESO patches.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write all figures to this file.")] = None,
    paper_minutes: Annotated[float, typer.Option(help="How long the paper's preset may train.")] = 5.0,
) -> None:
    """Train the default and the paper's preset on PESO patches, and score both against ground truth.

    Example: bottlegan bench train --data peso/ --json bench.json
    """
    from bottlegan.experiments.bench_train import bench_train
    from bottlegan.experiments.paired import load_halves

    progress = TerminalProgress()
    figures = bench_train(load_halves("cpu", data, 0, progress), 60 * paper_minutes, progress)
    if json_file is not None:
        write_text(json_file, json.dumps(figures, indent=2, allow_nan=False) + "\n")
    shown = {key: value for key, value in figures.items() if key != "traces"}
    typer.echo(json.dumps(shown, indent=2))
