"""`bottlegan view`: show slides, a federation or a lab's drift in the browser."""

import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from bottlegan.cli.options import AllowOption, ModelOption, check_paths, find_model
from bottlegan.core.errors import InputError

RUN_LOG, DRIFT_DATA = "federation.jsonl", "drift.json"
"""Files that mark the folder of a run, and that of a drift report."""


def view(
    source: Annotated[
        list[Path],
        typer.Argument(
            help="Slides, images, a folder of either, of a run, or of a drift report.",
            metavar="PATH...",
            show_default=False,
        ),
    ],
    model: ModelOption = None,
    style: Annotated[
        str | None, typer.Option(help="Style of the slides, if the model knows it. Otherwise it is fitted to each.")
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(help="Also offer the style of these images: an image, a folder or a slide.", show_default=False),
    ] = None,
    network: Annotated[
        Path | None,
        typer.Option(help="Show this network's predictions over the slides: a federation's network.safetensors."),
    ] = None,
    allow: AllowOption = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    port: Annotated[int, typer.Option(help="Port of this machine.", min=0, max=65535, show_default="any free")] = 0,
) -> None:
    """Look at slides before and after in the browser. Colors are mapped as you pan and zoom, and nothing is written.

    A folder is shown as a gallery of slides before and after. Slides whose verdict needs attention come first.

    The folder of a federation's run is shown live: curves, the state and stain of each lab, which labs stain alike,
    and which were left out and why. A folder that bottlegan drift wrote shows a lab's stain over time.

    Only this machine can open the page, and it loads nothing from the internet. Its address contains a secret: whoever
    has it can see the slides while the command runs. Stop it with Ctrl-C.

    Example: bottlegan view slide.svs
    Example: bottlegan view slides/
    Example: bottlegan view run/
    Example: bottlegan view slide.svs --network run/network.safetensors
    Example: bottlegan view a.svs b.svs --like lab-1/
    """
    check_paths(*source, model, like, network)
    if any(shows_board(path) for path in source):
        if len(source) > 1 or any(option is not None for option in (model, style, like, network, allow)):
            raise InputError("a run or a drift report is shown alone; leave out slides and their options")
        _view_board(source[0], browser, port)
        return
    if allow and network is None:
        raise InputError("--allow needs --network; give both, or leave out both")
    from bottlegan.viewer.server import make_app, serving
    from bottlegan.viewer.session import Settings, open_session
    from bottlegan.viewer.slide_routes import list_routes

    settings = Settings(find_model(model), style, like, network, tuple(allow or ()))
    page = "gallery.html" if any(path.is_dir() for path in source) else "view.html"
    with open_session(source, settings) as session, serving(make_app(page, list_routes(session)), port) as url:
        _wait(url, browser)


def shows_board(folder: Path) -> bool:
    """Return whether a folder belongs to a federation's run, or was written by `bottlegan drift`."""
    return (folder / RUN_LOG).is_file() or (folder / DRIFT_DATA).is_file()


def _view_board(folder: Path, browser: bool, port: int) -> None:
    from bottlegan.viewer.board import follow_drift, follow_run, list_routes
    from bottlegan.viewer.server import make_app, serving

    board = follow_run(folder) if (folder / RUN_LOG).is_file() else follow_drift(folder)
    with serving(make_app("board.html", list_routes(board)), port) as url:
        _wait(url, browser)


def _wait(url: str, browser: bool) -> None:
    """Print the address of the page, and wait for Ctrl-C."""
    typer.echo(f"Look at {url}")
    typer.echo("Press Ctrl-C to stop.", err=True)
    if browser:
        webbrowser.open(url)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        typer.echo("Stopped.", err=True)
