"""`bottlegan view`: slides in the browser, as scanned and in another stain."""

import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from bottlegan.cli.options import ModelOption, check_paths, find_model


def view(
    source: Annotated[
        list[Path],
        typer.Argument(help="Slides, images, or a folder of either.", metavar="SLIDE...", show_default=False),
    ],
    model: ModelOption = None,
    style: Annotated[
        str | None, typer.Option(help="The style of the slides, if the model knows it; else it is fitted to each.")
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(help="Also offer the style of these images: an image, a folder or a slide.", show_default=False),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    port: Annotated[int, typer.Option(help="Port of this machine.", min=0, max=65535, show_default="any free")] = 0,
) -> None:
    """Look at slides in the browser, before and after, while colors are mapped as you pan and zoom. Nothing is written.

    A folder is shown as a gallery: each slide before and after, those first whose verdict asks for a look.

    The page is for this machine alone, and loads nothing from the internet. Its address holds a secret: whoever has it
    can see the slides while this runs. Stop it with Ctrl-C.

    Example: bottlegan view slide.svs
    Example: bottlegan view slides/
    Example: bottlegan view a.svs b.svs --like lab-1/
    """
    check_paths(*source, model, like)
    from bottlegan.viewer.server import make_app, serving
    from bottlegan.viewer.session import Settings, open_session
    from bottlegan.viewer.slide_routes import list_routes

    settings = Settings(find_model(model), style, like)
    page = "gallery.html" if any(each.is_dir() for each in source) else "view.html"
    with open_session(source, settings) as session, serving(make_app(page, list_routes(session)), port) as url:
        _wait(url, browser)


def _wait(url: str, browser: bool) -> None:
    """Say where the page is, and wait until somebody presses Ctrl-C."""
    typer.echo(f"Look at {url}")
    typer.echo("Press Ctrl-C to stop.", err=True)
    if browser:
        webbrowser.open(url)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        typer.echo("Stopped.", err=True)
