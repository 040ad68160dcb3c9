"""`bottlegan exchange`: a federation without any connection, by files that are carried or synchronized."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottlegan.cli.options import SetOption, check_paths, load_settings
from bottlegan.cli.progress import TerminalProgress

if TYPE_CHECKING:
    from bottlegan.federated.server.config import FederationConfig

POLL_SECONDS = 2.0

exchange = typer.Typer(
    no_args_is_help=True, help="Run a federation without any connection: by sealed files in a folder that you carry."
)
Home_ = Annotated[Path, typer.Argument(metavar="HOME", help="This side's folder, made by init.", show_default=False)]
Shared = Annotated[
    Path,
    typer.Argument(metavar="FOLDER", help="The folder that is carried or synchronized.", show_default=False),
]


@exchange.command("init")
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="HOME", help="New folder for this side's keys and state.", show_default=False)
    ],
    name: Annotated[str, typer.Option(help="What the others know this side by.", show_default="server")] = "server",
    server: Annotated[bool, typer.Option("--server", help="Make the server's home, not a lab's.")] = False,
    lab: Annotated[
        Path | None,
        typer.Option(help="The lab.toml of a lab.", show_default="a new one in HOME, to be filled in"),
    ] = None,
) -> None:
    """Make this side's keys and its card, which the other side needs.

    Example: bottlegan exchange init uppsala-home --name uppsala
    Example: bottlegan exchange init server-home --server
    """
    from bottlegan.core.errors import InputError
    from bottlegan.federated.folder.home import make_home

    if server and lab is not None:
        raise InputError("a server has no lab.toml; give --server or --lab, not both")
    if not server and name == "server":
        raise InputError("a lab needs a name: give --name, or --server if this is the server")
    home = make_home(folder, name, None if server else lab, server=server)
    typer.echo(f"Made {folder}. Its secret keys stay there; keep them from others, and keep a backup.")
    if home.config.lab is not None and lab is None:
        typer.echo(f"Say in {home.config.lab} where this lab's images are.")
    _show_card(home.card_file, home.card.fingerprint)


@exchange.command("trust")
def trust(
    folder: Home_,
    card: Annotated[Path, typer.Argument(help="The other side's card.", show_default=False)],
    replace: Annotated[
        bool, typer.Option("--replace", help="Take it instead of the card of the same name that is trusted.")
    ] = False,
) -> None:
    """Take in the card of the other side: the server's in a lab, each lab's at the server.

    Whoever gives you a false card can read what you send and speak for the other side. Compare the fingerprint by
    telephone.

    Example: bottlegan exchange trust server-home uppsala.card
    """
    from bottlegan.federated.folder.card import read_card
    from bottlegan.federated.folder.home import Home

    check_paths(card)
    found = read_card(card)
    Home(folder).trust(found, replacing=replace)
    typer.echo(f"{found.name} is trusted. Compare its fingerprint by telephone: {found.fingerprint}")


@exchange.command("revoke")
def revoke(
    folder: Home_,
    name: Annotated[str, typer.Argument(help="Whom not to trust any more.", show_default=False)],
) -> None:
    """Stop trusting a side: nothing from it is taken any more.

    What was trained with a lab before keeps its influence; `bottlegan remove` deletes its style.

    Example: bottlegan exchange revoke server-home uppsala
    """
    from bottlegan.federated.folder.home import Home

    card = Home(folder).revoke(name)
    typer.echo(f"{name} is not trusted any more (its fingerprint was {card.fingerprint}).")
    typer.echo(f"Weights that were trained with {name} keep its influence. Its style: bottlegan remove RUN {name}")


@exchange.command("rotate")
def rotate(folder: Home_) -> None:
    """Make new keys for this side, for example after a theft. The others must take in the new card.

    Example: bottlegan exchange rotate uppsala-home
    """
    from bottlegan.federated.folder.home import Home

    home = Home(folder)
    home.rotate()
    typer.echo("The old keys are gone; what was sealed for them cannot be read any more, and is asked for again.")
    _show_card(home.card_file, home.card.fingerprint)
    typer.echo(f"There: bottlegan exchange trust HOME {home.card_file.name} --replace")


@exchange.command("serve")
def serve(
    folder: Home_,
    shared: Shared,
    out: Annotated[Path, typer.Option(help="Folder for the run and its results.", show_default=False)],
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of the federation, as `bottlegan simulate` takes it; only needed to begin.",
            show_default="that of the run in --out, or the default settings",
        ),
    ] = None,
    changes: SetOption = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="Folder with the public reference set, which any phase1.method but code needs."),
    ] = None,
    patience: Annotated[
        float, typer.Option(help="Days that a lab has to answer; after that, the others go on without it.", min=0)
    ] = 14.0,
    watch: Annotated[
        bool, typer.Option("--watch", help="Wait for answers until all is done, where the folder is synchronized.")
    ] = False,
) -> None:
    """Run the federation at the server, as far as it gets with the answers that are there. Give it again to go on.

    The status is 0 when all is done, and 3 while labs have to answer first.

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
        typer.echo(f"Waiting for {names}. Take {shared} there, and give this command again with the answers.")
        sys.exit(3)
    typer.echo((out / SCORES).read_text(encoding="utf-8"))
    typer.echo(f"Done. Wrote {out / NETWORK}. Try: bottlegan predict {out / NETWORK} IMAGES masks/")


@exchange.command("answer")
def answer(
    folder: Home_,
    shared: Shared,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on answering until Ctrl-C, where the folder is synchronized.")
    ] = False,
) -> None:
    """Answer the server's requests at a lab. Nothing leaves it but what is written to FOLDER, sealed for the server.

    If there is no new request, one that could not be answered last time is tried again.

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
        time.sleep(POLL_SECONDS)
    if not answered:
        typer.echo(f"There is no new request for {home.card.name} in {shared}.")
    elif all(failure is None for _, failure in answered):
        typer.echo(f"Take {shared} back to {channel.peer.name}.")
    else:
        log = client.state / "errors.jsonl"
        typer.echo(f"{log} says what went wrong. Mend it and give this command again, or take {shared} back as it is.")


@exchange.command("status")
def status(folder: Home_) -> None:
    """Show whom this side trusts, and how far it got with each.

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
    """Return the settings and the prior: those given, or those of the run that is there."""
    from bottlegan.core.state import read_document
    from bottlegan.federated.server.config import FederationConfig
    from bottlegan.federated.server.folder import CONFIG, OWN_PRIOR, holds_run
    from bottlegan.federated.simulation import SimulationConfig

    if config is not None or changes:
        check_paths(config)
        asked = load_settings(SimulationConfig, config, changes)
        if config is None:
            return asked.federation, None
        return asked.federation, None if asked.labs.prior is None else config.parent / asked.labs.prior
    if holds_run(out):
        own = out / OWN_PRIOR
        return read_document(FederationConfig, out / CONFIG), own if own.exists() else None
    return FederationConfig(), None


def _show_card(path: Path, fingerprint: str) -> None:
    typer.echo(f"Card, for the other side: {path}")
    typer.echo(f"Fingerprint, to be compared by telephone: {fingerprint}")
