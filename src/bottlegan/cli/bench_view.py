"""`bottlegan bench view`: the viewer, measured in a real browser."""

from pathlib import Path
from typing import Annotated

import typer

from bottlegan.cli.bench import write_figures
from bottlegan.cli.options import JsonOption, check_paths
from bottlegan.cli.progress import TerminalProgress


def bench_view(
    slide: Annotated[Path, typer.Argument(help="Slide to look at.", show_default=False)],
    json_file: JsonOption = None,
    repeats: Annotated[int, typer.Option(help="Number of measurements; the median is reported.", min=1)] = 3,
) -> None:
    """Measure the viewer in Chromium with software rendering: first pixels, frames per second, tiles, exactness.

    Example: bottlegan bench view slide.svs --json bench.json
    """
    check_paths(slide)
    from bottlegan.bench import view

    figures = view.bench_view(slide, repeats=repeats, progress=TerminalProgress())
    write_figures(figures, json_file)
    for name, value in figures.items():
        typer.echo(f"{name:<32} {f'{value:.3g}' if isinstance(value, float) else value}")
