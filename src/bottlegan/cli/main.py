"""The `bottlegan` command: what each sub-command is called, and what becomes of errors."""

import sys

import typer

from bottlegan import __version__
from bottlegan.cli.bench import bench
from bottlegan.cli.demo import demo
from bottlegan.cli.drift import drift
from bottlegan.cli.evaluate import evaluate
from bottlegan.cli.normalize import normalize, restain
from bottlegan.cli.onboard import onboard, train_prior
from bottlegan.cli.reproduce import reproduce
from bottlegan.cli.train import train
from bottlegan.errors import InputError

app = typer.Typer(
    name="bottlegan",
    help="Every lab's staining style, learned together without sharing a pixel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(train)
app.command()(onboard)
app.command()(normalize)
app.command()(restain)
app.command()(evaluate)
app.command()(drift)
app.command("train-prior")(train_prior)
app.command()(reproduce)
app.add_typer(bench, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bottlegan {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Show the version."),
) -> None:
    pass


def main() -> None:
    """Run the command line. Exit status 0 is done, 2 bad usage or input (one line on stderr), 1 a fault of ours."""
    try:
        app()
    except InputError as error:
        typer.echo(f"bottlegan: {' '.join(str(error).split())}", err=True)
        sys.exit(2)
