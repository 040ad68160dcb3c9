"""`bottlegan reproduce`: the paper's tables and figures."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bottlegan.cli.progress import TerminalProgress
from bottlegan.core.progress import EventLog

Result = Literal["table1", "table2", "table3", "phase1", "figure2", "figure3"]


def reproduce(
    result: Annotated[Result, typer.Argument(help="Which table or figure of the paper to make.", show_default=False)],
    out: Annotated[
        Path, typer.Option(help="Folder for the results; an unfinished run there is resumed.", show_default=False)
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of PESO patches or, for table3, of real labs with an index.csv. Not needed for smoke.",
            show_default="$BOTTLEGAN_PESO",
        ),
    ] = None,
    scale: Annotated[
        Literal["smoke", "cpu", "paper"],
        typer.Option(help="smoke: seconds, on procedural tissue; cpu: all styles; paper: as many steps as the paper."),
    ] = "cpu",
    styles: Annotated[
        Literal["mixtures", "wide"],
        typer.Option(
            help="How much the labs of table1 and figure3 differ. mixtures: mixtures of nine laboratories, as in the "
            "paper. wide: the same with much added noise."
        ),
    ] = "mixtures",
    method: Annotated[
        Literal["code", "generators", "adversarial"],
        typer.Option(help="The setting phase1.method of phase1."),
    ] = "adversarial",
    labs: Annotated[int, typer.Option(help="Use the first N labs of table1 in phase1.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Seed of table2, figure2 and phase1; the other results use --draws.")] = 0,
    draws: Annotated[
        int,
        typer.Option(help="Seeds of table1, table3 and figure3, for labs and initial weights.", min=1),
    ] = 5,
    folds: Annotated[
        int, typer.Option(help="Number of folds of the paper's rows in table1 and figure3.", min=1, max=3)
    ] = 3,
    row: Annotated[
        list[str] | None,
        typer.Option(help="Make only this row of table1 or table3; repeatable.", show_default="all"),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Compare settings of table1's baselines instead, on other labs.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Number of runs of table1, table3 and figure3 at the same time.", show_default="one a core", min=1
        ),
    ] = None,
) -> None:
    """Make one of the paper's tables or figures.

    Give the same command again to resume an interrupted run.

    Example: bottlegan reproduce table2 --out results
    """
    from bottlegan.core.files import make_folder
    from bottlegan.reproduce.paired import find_peso
    from bottlegan.reproduce.runs import run_table

    if scale != "smoke" and result != "table3":
        find_peso(data)  # refuse missing data at once
    make_folder(out)
    rows = tuple(row or ())
    with EventLog(out / f"{result}.jsonl") as log:
        progress = TerminalProgress(log)
        match result:
            case "table1":
                from bottlegan.reproduce.table1 import Table1

                table = Table1(scale, out, data, rows, draws, styles=styles, folds=folds, sweep=sweep)
                written = run_table(table, jobs, progress)
            case "phase1":
                from bottlegan.reproduce.phase1 import Trial, run_trial

                written = run_trial(Trial(scale, styles, method, labs, out, data, seed), progress)
            case "table3":
                from bottlegan.reproduce.table3 import Table3

                written = run_table(Table3(scale, out, data, rows, draws), jobs, progress)
            case "figure3":
                from bottlegan.reproduce.figure3 import run_figure3
                from bottlegan.reproduce.table1 import Table1

                table = Table1(scale, out, data, rows, draws, styles=styles, folds=folds, sweep=sweep)
                written = run_figure3(table, jobs, progress)
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
