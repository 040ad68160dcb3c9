"""`bottlegan bench attacks`: an attack campaign on our own federation."""

import json
from pathlib import Path
from typing import Annotated

import typer

from bottlegan.cli.progress import TerminalProgress


def attacks(
    out: Annotated[
        Path, typer.Option(help="Folder for all runs; unfinished runs there are resumed.", show_default=False)
    ],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this kind: tallies, replies, replay, files, bitflips, kills, poison.", show_default="all"
        ),
    ] = None,
    labs: Annotated[int, typer.Option(help="Number of labs in the poisoned federations.")] = 20,
    rounds: Annotated[int, typer.Option(help="Number of rounds in the poisoned federations.", min=1)] = 25,
    seed: Annotated[int, typer.Option(help="Seed of the poisoned federations: tissue and initial weights.", min=0)] = 0,
    compare: Annotated[bool, typer.Option("--compare", help="Also poison federations with a plain mean.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write all figures to this file.")] = None,
) -> None:
    """Attack our own federation: lies, junk, replays, hostile files, flipped bits, kills, poison.

    The exit status is 1 if an attack succeeds.

    Example: bottlegan bench attacks --out campaign
    Example: bottlegan bench attacks --out campaign --kind poison --compare --json poison.json
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from bottlegan.bench.attacks.campaign import bench_attacks
    from bottlegan.core.files import write_text

    rows = bench_attacks(
        out, kind or (), labs=labs, rounds=rounds, seed=seed, compare=compare, progress=TerminalProgress()
    )
    if json_file is not None:
        write_text(json_file, json.dumps([row.to_json() for row in rows], indent=2, allow_nan=False) + "\n")
    table = Table("kind", "attack", "held", "result", title="Attacks on our own federation", title_justify="left")
    for row in rows:
        table.add_row(row.kind, row.attack, "yes" if row.held else "NO", escape(row.result))
    Console(soft_wrap=True).print(table)
    if not all(row.held for row in rows):
        raise typer.Exit(1)
