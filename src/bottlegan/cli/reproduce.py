"""`bottlegan reproduce`: the paper's tables and figures."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bottlegan.cli.progress import TerminalProgress
from bottlegan.core.progress import EventLog

Result = Literal["table1", "table2", "figure2", "figure3"]


def reproduce(
    result: Annotated[Result, typer.Argument(help="Which table or figure of the paper to make.", show_default=False)],
    out: Annotated[
        Path, typer.Option(help="Folder for the results; an unfinished run there is resumed.", show_default=False)
    ],
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of PESO patches. Not needed for smoke.", show_default="$BOTTLEGAN_PESO"),
    ] = None,
    scale: Annotated[
        Literal["smoke", "cpu", "paper"],
        typer.Option(help="smoke: seconds, on procedural tissue; cpu: all styles; paper: as many steps as the paper."),
    ] = "cpu",
    seed: Annotated[int, typer.Option(help="The same seed gives the same results; table1 and figure3 have two.")] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(help="Number of runs of table1 and figure3 at the same time.", show_default="one a core", min=1),
    ] = None,
) -> None:
    """Make one of the paper's tables or figures.

    Give the same command again to resume an interrupted run.

    Example: bottlegan reproduce table2 --out results
    """
    from bottlegan.core.files import make_folder
    from bottlegan.reproduce.paired import find_peso

    if scale != "smoke":
        find_peso(data)  # said at once if it is not there
    make_folder(out)
    with EventLog(out / f"{result}.jsonl") as log:
        progress = TerminalProgress(log)
        match result:
            case "table1":
                from bottlegan.reproduce.table1 import run_table1

                written = run_table1(scale, out, data, jobs, progress)
            case "figure3":
                from bottlegan.reproduce.figure3 import run_figure3

                written = run_figure3(scale, out, data, jobs, progress)
            case "table2":
                from bottlegan.reproduce.table2 import run_table2

                run_table2(scale, out, data, seed, progress)
                written = out / "table2.md"
            case "figure2":
                from bottlegan.reproduce.figure2 import run_figure2

                written = run_figure2(scale, out, data, seed, progress)
    if written.suffix == ".md":
        typer.echo(written.read_text(encoding="utf-8"))
    typer.echo(f"Wrote {written}.")
