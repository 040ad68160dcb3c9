"""The `bottlegan` command: what each sub-command is called, and what becomes of errors."""

import sys

import typer

from bottlegan import __version__
from bottlegan.cli.audit import audit
from bottlegan.cli.bench import bench
from bottlegan.cli.bench_attacks import attacks
from bottlegan.cli.bench_view import bench_view
from bottlegan.cli.demo import demo
from bottlegan.cli.deploy import deploy
from bottlegan.cli.drift import drift
from bottlegan.cli.evaluate import evaluate
from bottlegan.cli.exchange import exchange
from bottlegan.cli.export import export
from bottlegan.cli.info import info
from bottlegan.cli.lut import lut
from bottlegan.cli.normalize import normalize, restain
from bottlegan.cli.onboard import onboard, train_prior
from bottlegan.cli.predict import predict
from bottlegan.cli.remove import remove
from bottlegan.cli.reproduce import reproduce
from bottlegan.cli.simulate import simulate
from bottlegan.cli.synth import synth
from bottlegan.cli.train import train
from bottlegan.cli.view import view
from bottlegan.core.errors import FederationError, InputError

EXTRAS = {
    "flwr": "federated",
    "ray": "federated",
    "cryptography": "federated",
    "playwright": "bench",
    "starlette": "viewer",
    "uvicorn": "viewer",
}
"""Packages that only some commands need, and the extra that brings each."""

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
app.command()(predict)
app.command()(view)
app.command()(info)
app.command()(lut)
app.command()(export)
app.command()(simulate)
app.command()(audit)
app.command()(remove)
app.command()(evaluate)
app.command()(drift)
app.command("train-prior")(train_prior)
app.command()(reproduce)
bench.command("view")(bench_view)
app.add_typer(deploy, name="deploy")
app.add_typer(exchange, name="exchange")
bench.command()(attacks)
app.add_typer(bench, name="bench")
app.add_typer(synth, name="synth")


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
        _say(error)
        sys.exit(2)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in EXTRAS:
            raise
        _say(InputError(f"{package} is not installed; pip install 'bottlegan[{EXTRAS[package]}]'"))
        sys.exit(2)
    except FederationError as error:
        # Neither the user's fault nor ours: clients did not do their part.
        _say(error)
        sys.exit(1)


def _say(error: Exception) -> None:
    typer.echo(f"bottlegan: {' '.join(str(error).split())}", err=True)
