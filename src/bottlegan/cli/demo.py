"""`bottlegan demo`: the method on procedural tissue."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bottlegan.cli.options import ConfigOption, SetOption, check_paths, load_settings
from bottlegan.cli.progress import TerminalProgress


def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html and metrics.json.")] = Path("demo"),
    config: ConfigOption = None,
    changes: SetOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed for the tissue and the labs.")] = None,
) -> None:
    """Show the method on procedural tissue of several labs. No data is needed.

    Example: bottlegan demo --out demo
    """
    check_paths(config)
    from bottlegan.demo.run import DemoConfig, run_demo

    chosen = load_settings(DemoConfig, config, changes)
    if seed is not None:
        chosen = replace(chosen, seed=seed)
    report = run_demo(chosen, out, TerminalProgress())
    typer.echo(f"Open {report} in a browser.")
