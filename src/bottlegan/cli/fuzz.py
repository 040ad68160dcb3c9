"""`bottlegan bench fuzz`: try to break the command line."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bottlegan.cli.options import JsonOption, check_json
from bottlegan.cli.progress import TerminalProgress
from bottlegan.core.files import write_text


def fuzz(
    cases: Annotated[int, typer.Option(help="Number of commands to try.", min=1)] = 1500,
    first: Annotated[int, typer.Option(help="Number of the first command, to run the campaign in parts.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="The same seed tries the same commands.")] = 0,
    json_file: JsonOption = None,
) -> None:
    """Try damaged files, odd paths, absurd arguments, broken TOML and strange environments.

    Each command must end in time, with status 0, 1 or 2, give its reason in at most three lines, change no input and
    leave no partial file. The exit status is 1 if any command does not.

    Example: bottlegan bench fuzz --cases 1500 --json fuzz.json
    """
    check_json(json_file)
    from bottlegan.bench.fuzz import run_campaign, summarize

    figures = summarize(run_campaign(cases, seed, first, TerminalProgress()))
    if json_file is not None:
        write_text(json_file, json.dumps(figures, indent=2) + "\n")
    families, faults = figures["families"], figures["faults"]
    assert isinstance(families, dict)  # noqa: S101 - summarize makes it
    assert isinstance(faults, list)  # noqa: S101 - as above
    columns = ("status 0", "status 1", "status 2", "hang", "faults")
    table = Table("cases", *columns, title=f"{cases} commands")
    for family, counts in families.items():
        assert isinstance(counts, dict)  # noqa: S101 - as above
        table.add_row(family, *(str(counts.get(column, 0)) for column in columns))
    Console().print(table)
    for fault in faults:
        typer.echo(" ".join(str(fault).split()), err=True)
    if faults:
        typer.echo(f"bottlegan: {len(faults)} of {cases} commands did not end properly", err=True)
        raise typer.Exit(1)
