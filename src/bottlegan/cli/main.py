"""The `bottlegan` command: the names of its sub-commands, and how errors are reported."""

import errno
import os
import signal
import sys
from io import TextIOWrapper
from types import FrameType
from typing import Never

import click
import typer

from bottlegan import __version__
from bottlegan.cli.audit import audit
from bottlegan.cli.bench import bench
from bottlegan.cli.bench_attacks import attacks
from bottlegan.cli.bench_privacy import privacy
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
    "jinja2": "quality",
    "markupsafe": "quality",
    "scipy": "quality",
    "skimage": "quality",
    "torchmetrics": "quality",
    "flwr": "federated",
    "ray": "federated",
    "cryptography": "federated",
    "playwright": "bench",
    "starlette": "viewer",
    "uvicorn": "viewer",
}
"""Packages that only some commands need, and the extra that installs each."""
STOPPED = 128 + signal.SIGINT
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""What the system says when a disk, a file or a quota is full."""

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
bench.command()(privacy)
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
    """Run the command line. Exit status: 0 done, 2 bad usage or input (one line on stderr), 1 a bug or a failure."""
    signal.signal(signal.SIGTERM, _end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows `?`
    try:
        status = app(standalone_mode=False) or 0
        sys.stdout.flush()  # a full disk is reported here, not while Python exits
        sys.exit(status)
    except BrokenPipeError:
        _discard_output()
        sys.exit(1)  # whoever read the output has closed it, as `head` does
    except click.exceptions.NoArgsIsHelpError:
        sys.exit(2)  # the help was shown instead
    except Exception as error:
        text = _explain(error)
        if text is None:
            raise
        if isinstance(error, OSError) and error.errno in FULL:
            _discard_output()
        if (progress := sys.modules.get("bottlegan.cli.progress")) is not None:
            progress.end_bars()
        _say(text)
        # A failed federation is no bad input: clients did not do their part.
        sys.exit(1 if isinstance(error, FederationError) else STOPPED if isinstance(error, click.Abort) else 2)


def _explain(error: Exception) -> str | None:
    """Return the error in one line for the user; None if it is a bug."""
    text = None
    match error:
        case click.UsageError():
            where = "bottlegan" if error.ctx is None else error.ctx.command_path
            text = f"{error.format_message().rstrip('.')}; see {where} --help"
        case click.Abort():
            text = "interrupted"
        case InputError() | FederationError():
            text = str(error)
        case ModuleNotFoundError() if (package := (error.name or "").split(".")[0]) in EXTRAS:
            text = f"{package} is not installed; pip install 'bottlegan[{EXTRAS[package]}]'"
        case MemoryError():
            text = "there is not enough memory; give smaller images, or ask for less at once"
        case OSError() if error.filename is not None and error.strerror is not None:
            text = f"{error.filename}: cannot be used ({error.strerror}); check the path, or choose another"
        case OSError() if error.errno in FULL:
            text = f"the output cannot be written ({error.strerror}); make room, or write it elsewhere"
    return text


def _discard_output() -> None:
    """Send what standard output still holds to nowhere, or Python would fail to write it again when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _end(number: int, frame: FrameType | None) -> Never:
    """Exit with the status that a shell expects after a signal, and let `finally` blocks clean up."""
    sys.exit(128 + number)


def _say(text: str) -> None:
    plain = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    typer.echo(f"bottlegan: {plain}", err=True)


if __name__ == "__main__":
    main()
