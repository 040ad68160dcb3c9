"""`bottlegan deploy`: start a federation of real labs over the network."""

from pathlib import Path
from typing import Annotated

import typer

from bottlegan.cli.options import SetOption, check_paths, load_settings

deploy = typer.Typer(no_args_is_help=True, help="Start a federation of real labs over the network.")
Folder = Annotated[Path, typer.Argument(help="Folder that `deploy init` wrote.", show_default=False)]
Token = Annotated[Path, typer.Option(help="File with the operator's token.", show_default=False)]
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@deploy.command("init")
def init(
    folder: Annotated[Path, typer.Argument(help="New folder to write to.", show_default=False)],
    host: Annotated[str, typer.Option(help="Name or IP address at which labs reach the server.", show_default=False)],
    labs: Annotated[str, typer.Option(help="Names of the labs, separated by commas.")] = "lab-a,lab-b",
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of the federation, as for `bottlegan simulate`.",
            show_default="the default settings",
        ),
    ] = None,
    changes: SetOption = None,
) -> None:
    """Write everything that a consortium needs to start: certificates, keys, commands, and a page for each IT team.

    Example: bottlegan deploy init consortium --host federation.example.org --labs uppsala,graz
    """
    check_paths(config)
    from bottlegan.federated.deploy.consortium import deploy as write
    from bottlegan.federated.simulation import SimulationConfig

    # A federation that was tried with `bottlegan simulate` is deployed with the same settings, but with real labs.
    settings = load_settings(SimulationConfig, config, changes)
    prior = None if config is None or settings.labs.prior is None else config.parent / settings.labs.prior
    check_paths(prior)
    write(folder, host, [lab.strip() for lab in labs.split(",") if lab.strip()], settings.federation, prior)
    typer.echo(f"Wrote {folder}. Begin with {folder / 'README.md'}; server/ and labs/ hold secret keys.")


@deploy.command("register")
def register(
    folder: Folder,
    labs: Annotated[list[str], typer.Argument(help="Names of the labs.", show_default=False)],
) -> None:
    """Let labs connect with the keys in server/keys. The SuperLink must run on this machine.

    A second key under the name of a lab is refused.

    Example: bottlegan deploy register consortium uppsala graz
    """
    from bottlegan.federated.deploy.keys import call_operator, find_server
    from bottlegan.federated.deploy.keys import register as write

    server = find_server(folder)
    for lab, new in write(server, labs, call_operator(server)).items():
        typer.echo(f"{lab} may connect now." if new else f"{lab} was allowed to connect already.")


@deploy.command("revoke")
def revoke(
    folder: Folder,
    lab: Annotated[str, typer.Argument(help="The lab whose key to revoke.", show_default=False)],
) -> None:
    """Revoke a lab's key: its node is disconnected and cannot come back. The SuperLink must run on this machine.

    Example: bottlegan deploy revoke consortium uppsala
    """
    from bottlegan.federated.deploy.keys import call_operator, find_server
    from bottlegan.federated.deploy.keys import revoke as write

    server = find_server(folder)
    count = write(server, lab, call_operator(server))
    typer.echo(
        f"{lab} can no longer connect ({count} nodes could). Its public key is in {server / 'keys' / 'revoked'}."
    )
    typer.echo(f"Weights trained with {lab} keep its influence. To delete its style: bottlegan remove RUN {lab}")


@deploy.command("rotate")
def rotate(
    folder: Folder,
    server: Annotated[bool, typer.Option("--server", help="Make a new key and certificate for the server.")] = False,
    operator: Annotated[bool, typer.Option("--operator", help="Make a new token for the operator.")] = False,
    lab: Annotated[str | None, typer.Option(help="Make a new key for this lab's node.", show_default=False)] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="With --lab: the public key that the lab made itself and sent.",
            show_default="a new key in the lab's folder, to be taken to the lab",
        ),
    ] = None,
) -> None:
    """Replace a key. The old one stops working.

    Example: bottlegan deploy rotate consortium --server
    Example: bottlegan deploy rotate consortium --lab uppsala --key uppsala.pub
    """
    from bottlegan.core.errors import InputError
    from bottlegan.federated.deploy import keys

    if not (server or operator or lab) or (key is not None and lab is None):
        raise InputError("nothing to replace; give --server, --operator or --lab NAME (optionally with --key)")
    if server:
        keys.rotate_server(folder)
        typer.echo("The server has a new certificate. Restart superlink.sh and reload nginx. Labs need do nothing.")
    if operator:
        keys.rotate_operator(folder)
        typer.echo("The operator has a new token. Restart superlink.sh.")
    if lab is not None:
        keys.rotate_lab(folder, lab, keys.call_operator(keys.find_server(folder)), key)
        own = folder / "labs" / lab / "node.key"
        how = "The lab's own new key" if key is not None else f"Take {own} to the lab in a way that you trust. It"
        typer.echo(f"{how} is registered, and the old one no longer is. Restart the lab's node.")


@deploy.command("superlink", context_settings=PASSED_ON, hidden=True)
def superlink(context: typer.Context, token: Token) -> None:
    """Run `flower-superlink`, but take orders only from the holder of the token. superlink.sh calls this."""
    from bottlegan.federated.flower.operator import run_superlink

    run_superlink(token, context.args)


@deploy.command("supernode", context_settings=PASSED_ON, hidden=True)
def supernode(context: typer.Context) -> None:
    """Be `flower-supernode`, but idle less between two messages; start.sh calls this."""
    from bottlegan.federated.flower.node import run_supernode

    run_supernode(context.args)


@deploy.command("flwr", context_settings=PASSED_ON, hidden=True)
def flwr(context: typer.Context, token: Token) -> None:
    """Run `flwr` with the operator's token. flwr.sh calls this."""
    from bottlegan.federated.flower.operator import run_flwr

    run_flwr(token, context.args)
