"""`bottlegan reproduce`: the paper's tables and figures."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bottlegan.cli.progress import TerminalProgress
from bottlegan.progress import EventLog


def reproduce(
    result: Annotated[Literal["table2", "figure2"], typer.Argument(help="What to make.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for the results; a run there is gone on with.", show_default=False)],
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of PESO patches; else $BOTTLEGAN_PESO or ../shared/data/peso. Not used by smoke."),
    ] = None,
    scale: Annotated[
        Literal["smoke", "cpu", "paper"],
        typer.Option(help="smoke: seconds, on procedural tissue; cpu: all styles; paper: as many steps as the paper."),
    ] = "cpu",
    seed: Annotated[int, typer.Option(help="The same seed gives the same results.")] = 0,
) -> None:
    """Make one of the paper's tables or figures.

    A run that was interrupted goes on where it was when the same command is given again.

    Example: bottlegan reproduce table2 --out results
    """
    from bottlegan.experiments.figure2 import run_figure2
    from bottlegan.experiments.table2 import run_table2
    from bottlegan.files import make_folder

    make_folder(out)
    with EventLog(out / f"{result}.jsonl") as log:
        if result == "table2":
            run_table2(scale, out, data, seed, TerminalProgress(log))
            written = out / "table2.md"
        else:
            written = run_figure2(scale, out, data, seed, TerminalProgress(log))
    typer.echo(f"Wrote {written}.")
