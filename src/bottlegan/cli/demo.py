"""`bottlegan demo`: the method on procedural tissue."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bottlegan.cli.progress import TerminalProgress


def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html and metrics.json.")] = Path("demo"),
    config: Annotated[Path | None, typer.Option(help="TOML file with labs, patches, reference, size.")] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed gives other tissue and other labs.")] = None,
) -> None:
    """Show the method on procedural tissue of several labs: no data needed.

    Example: bottlegan demo --out demo
    """
    from bottlegan.core.config import load
    from bottlegan.demo.run import DemoConfig, run_demo

    chosen = DemoConfig() if config is None else load(DemoConfig, config)
    if seed is not None:
        chosen = replace(chosen, seed=seed)
    report = run_demo(chosen, out, TerminalProgress())
    typer.echo(f"Open {report} in a browser.")
