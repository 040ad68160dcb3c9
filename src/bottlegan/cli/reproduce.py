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
            help="How far apart the labs of table1 and figure3 stain: mixtures of nine laboratories, as the paper "
            "has it, or these with much noise on top."
        ),
    ] = "mixtures",
    method: Annotated[
        Literal["code", "generators", "adversarial"], typer.Option(help="How phase1 is run: as phase1.method.")
    ] = "adversarial",
    labs: Annotated[int, typer.Option(help="Labs of phase1, the first of table1's.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="The same seed gives the same results; table1 has its own draws.")] = 0,
    draws: Annotated[
        int, typer.Option(help="Draws of labs and first weights in table1, table3 and figure3.", min=1)
    ] = 5,
    folds: Annotated[int, typer.Option(help="Folds of the paper's rows in table1 and figure3.", min=1, max=3)] = 3,
    row: Annotated[
        list[str] | None,
        typer.Option(help="A row of table1 or table3; may be given again.", show_default="all"),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Compare settings of table1's baselines instead, on labs drawn for that.")
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

    if scale != "smoke":
        find_peso(data)  # said at once if it is not there
    make_folder(out)
    with EventLog(out / f"{result}.jsonl") as log:
        progress = TerminalProgress(log)
        match result:
            case "table1":
                from bottlegan.reproduce.table1 import Experiment, run_table1

                experiment = Experiment(scale, styles, out, data, tuple(row or ()), draws, folds, sweep)
                written = run_table1(experiment, jobs, progress)
            case "phase1":
                from bottlegan.reproduce.phase1 import Trial, run_trial

                written = run_trial(Trial(scale, styles, method, labs, out, data, seed), progress)
            case "table3":
                from bottlegan.reproduce import table3

                real = table3.Experiment(scale, out, data, tuple(row or ()), draws)
                written = table3.run_table3(real, jobs, progress)
            case "figure3":
                from bottlegan.reproduce.figure3 import run_figure3
                from bottlegan.reproduce.table1 import Experiment

                experiment = Experiment(scale, styles, out, data, tuple(row or ()), draws, folds, sweep)
                written = run_figure3(experiment, jobs, progress)
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
