"""`bottlegan exchange`: a federation without a network connection, by files that are carried or synchronized."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottlegan.cli.options import SetOption, check_paths, load_settings
from bottlegan.cli.progress import TerminalProgress

if TYPE_CHECKING:
    from bottlegan.federated.server.config import FederationConfig

ANSWER_POLL_SECONDS = 2.0

exchange = typer.Typer(
    no_args_is_help=True, help="Run a federation without a network connection, by sealed files in a shared folder."
)
Home_ = Annotated[Path, typer.Argument(metavar="HOME", help="This side's folder, made by init.", show_default=False)]
Shared = Annotated[
    Path,
    typer.Argument(metavar="FOLDER", help="The folder that you carry or synchronize.", show_default=False),
]


@exchange.command("init")
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="HOME", help="New folder for this side's keys and state.", show_default=False)
    ],
    name: Annotated[str, typer.Option(help="Name of this side for the others.", show_default="server")] = "server",
    server: Annotated[bool, typer.Option("--server", help="Make the home of the server, not of a lab.")] = False,
    lab: Annotated[
        Path | None,
        typer.Option(help="The lab.toml of a lab.", show_default="a new one in HOME, for you to fill in"),
    ] = None,
) -> None:
    """Make the keys and the card of this side. The other side needs the card.

    Example: bottlegan exchange init uppsala-home --name uppsala
    Example: bottlegan exchange init server-home --server
    """
    from bottlegan.core.errors import InputError
    from bottlegan.federated.folder.home import make_home

    if server and lab is not None:
        raise InputError("a server has no lab.toml; give --server or --lab, not both")
    if not server and name == "server":
        raise InputError("a lab needs a name; give --name, or --server if this is the server")
    home = make_home(folder, name, None if server else lab, server=server)
    typer.echo(f"Made {folder}. It holds secret keys: protect them, and keep a backup.")
    if home.config.lab is not None and lab is None:
        typer.echo(f"Enter in {home.config.lab} where this lab's images are.")
    _show_card(home.card_file, home.card.fingerprint)


@exchange.command("trust")
def trust(
    folder: Home_,
    card: Annotated[Path, typer.Argument(help="The other side's card.", show_default=False)],
    replace: Annotated[bool, typer.Option("--replace", help="Replace the trusted card of the same name.")] = False,
) -> None:
    """Trust the card of the other side: the server's card in a lab, each lab's card at the server.

    Somebody who gives you a false card can read what you send and impersonate the other side. Compare the fingerprint
    by telephone.

    Example: bottlegan exchange trust server-home uppsala.card
    """
    from bottlegan.federated.folder.card import read_card
    from bottlegan.federated.folder.home import Home

    check_paths(card)
    peer = read_card(card)
    Home(folder).trust(peer, replacing=replace)
    typer.echo(f"{peer.name} is trusted. Compare its fingerprint by telephone: {peer.fingerprint}")


@exchange.command("revoke")
def revoke(
    folder: Home_,
    name: Annotated[str, typer.Argument(help="Name of the side to stop trusting.", show_default=False)],
) -> None:
    """Stop trusting a side. Its files are refused from now on.

    Weights that were trained with a lab keep its influence; `bottlegan remove` deletes its style.

    Example: bottlegan exchange revoke server-home uppsala
    """
    from bottlegan.federated.folder.home import Home

    card = Home(folder).revoke(name)
    typer.echo(f"{name} is no longer trusted (its fingerprint was {card.fingerprint}).")
    typer.echo(f"Weights trained with {name} keep its influence. To delete its style: bottlegan remove RUN {name}")


@exchange.command("rotate")
def rotate(folder: Home_) -> None:
    """Make new keys for this side, for example after a theft. The others must trust the new card.

    Example: bottlegan exchange rotate uppsala-home
    """
    from bottlegan.federated.folder.home import Home

    home = Home(folder)
    home.rotate()
    typer.echo("The old keys are gone. Files sealed for them can no longer be read; they are requested again.")
    _show_card(home.card_file, home.card.fingerprint)
    typer.echo(f"On the other side: bottlegan exchange trust HOME {home.card_file.name} --replace")


@exchange.command("serve")
def serve(
    folder: Home_,
    shared: Shared,
    out: Annotated[Path, typer.Option(help="Folder for the run and its results.", show_default=False)],
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of the federation, as for `bottlegan simulate`. Only needed to start.",
            show_default="that of the run in --out, or the default settings",
        ),
    ] = None,
    changes: SetOption = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="Folder with the public reference set. Required unless phase1.method is code."),
    ] = None,
    patience: Annotated[
        float, typer.Option(help="Days that a lab has to answer before the others continue without it.", min=0)
    ] = 14.0,
    watch: Annotated[
        bool, typer.Option("--watch", help="Wait for answers until the run is done, if the folder is synchronized.")
    ] = False,
) -> None:
    """Run the federation at the server as far as the present answers allow. Repeat the command to continue.

    The exit status is 0 when the run is done, and 3 while labs still have to answer.

    Example: bottlegan exchange serve server-home /media/stick --config federation.toml --out run
    """
    from bottlegan.core.errors import WaitingError
    from bottlegan.data.patches import list_patches
    from bottlegan.federated.folder.exchange import DAY
    from bottlegan.federated.folder.exchange import serve as run
    from bottlegan.federated.folder.home import Home
    from bottlegan.federated.server.folder import NETWORK, SCORES

    federation, prior = _find_settings(out, config, changes)
    check_paths(prior)
    public = None if reference is None else [patch.read_image() for patch in list_patches(reference)]
    try:
        run(
            Home(folder),
            shared,
            federation,
            out,
            patience=patience * DAY,
            wait=float("inf") if watch else 0.0,
            reference_set=public,
            prior=prior,
            progress=TerminalProgress(),
        )
    except WaitingError as error:
        names = ", ".join(error.missing)
        typer.echo(f"Waiting for {names}. Take {shared} there, and repeat this command with the answers.")
        sys.exit(3)
    typer.echo((out / SCORES).read_text(encoding="utf-8"))
    typer.echo(f"Done. Wrote {out / NETWORK}. Try: bottlegan predict {out / NETWORK} IMAGES masks/")


@exchange.command("answer")
def answer(
    folder: Home_,
    shared: Shared,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep answering until Ctrl-C, if the folder is synchronized.")
    ] = False,
) -> None:
    """Answer the server's requests at a lab. Only the files in FOLDER leave the lab, sealed for the server.

    If there is no new request, a request that failed last time is tried again.

    Example: bottlegan exchange answer uppsala-home /media/stick
    """
    from bottlegan.federated.client.client import open_client
    from bottlegan.federated.folder.home import Home
    from bottlegan.federated.folder.lab import answer_all, open_channel

    home = Home(folder)
    channel = open_channel(home, shared)
    assert home.config.lab is not None  # noqa: S101 - open_channel has seen to it
    client = open_client(home.config.lab)
    while True:
        answered = answer_all(channel, client, again=not watch)
        for kind, failure in answered:
            typer.echo(f"{kind}: answered" if failure is None else f"{kind}: {failure}")
        if not watch:
            break
        time.sleep(ANSWER_POLL_SECONDS)
    if not answered:
        typer.echo(f"There is no new request for {home.card.name} in {shared}.")
    elif all(failure is None for _, failure in answered):
        typer.echo(f"Take {shared} back to {channel.peer.name}.")
    else:
        log = client.state / "errors.jsonl"
        typer.echo(f"{log} says what went wrong. Fix it and repeat this command, or take {shared} back as it is.")


@exchange.command("status")
def status(folder: Home_) -> None:
    """Show which sides this side trusts, and the progress with each.

    Example: bottlegan exchange status server-home
    """
    from rich.console import Console
    from rich.table import Table

    from bottlegan.federated.folder.channel import read_ledger
    from bottlegan.federated.folder.home import Home

    home = Home(folder)
    _show_card(home.card_file, home.card.fingerprint)
    table = Table("name", "fingerprint", "sent", "of these arrived", "taken from there")
    for name, card in home.trusted().items():
        ledger = read_ledger(home, card)
        table.add_row(name, card.fingerprint, str(ledger.sent), str(ledger.acknowledged), str(ledger.heard))
    Console(soft_wrap=True).print(table)


def _find_settings(out: Path, config: Path | None, changes: list[str] | None) -> "tuple[FederationConfig, Path | None]":
    """Return the settings and the prior from the command line, or else those of the existing run."""
    from bottlegan.core.state import read_document
    from bottlegan.federated.server.config import FederationConfig
    from bottlegan.federated.server.folder import CONFIG, OWN_PRIOR, holds_run
    from bottlegan.federated.simulation import SimulationConfig

    if config is not None or changes:
        check_paths(config)
        settings = load_settings(SimulationConfig, config, changes)
        if config is None:
            return settings.federation, None
        return settings.federation, None if settings.labs.prior is None else config.parent / settings.labs.prior
    if holds_run(out):
        own = out / OWN_PRIOR
        return read_document(FederationConfig, out / CONFIG), own if own.exists() else None
    return FederationConfig(), None


def _show_card(path: Path, fingerprint: str) -> None:
    typer.echo(f"Card for the other side: {path}")
    typer.echo(f"Fingerprint, to compare by telephone: {fingerprint}")
