"""`bottlegan deploy`: start a federation of real labs."""

from pathlib import Path
from typing import Annotated

import typer

from bottlegan.cli.options import check_paths

deploy = typer.Typer(no_args_is_help=True, help="Start a federation of real labs, over the network.")


@deploy.callback()
def _root() -> None:
    pass


@deploy.command("init")
def init(
    folder: Annotated[Path, typer.Argument(help="New folder to write to.", show_default=False)],
    host: Annotated[
        str, typer.Option(help="Name or IP address of the server, as labs will reach it.", show_default=False)
    ],
    labs: Annotated[str, typer.Option(help="Names of the labs, with commas between them.")] = "lab-a,lab-b",
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of the federation, as `bottlegan simulate` takes it.",
            show_default="all settings as they are shipped",
        ),
    ] = None,
) -> None:
    """Write all that a consortium needs to start: certificates, keys, commands, and a page for each hospital's IT.

    Example: bottlegan deploy init consortium --host federation.example.org --labs uppsala,graz
    """
    from bottlegan.core.config import load
    from bottlegan.federated.deploy.consortium import deploy as write
    from bottlegan.federated.simulation import SimulationConfig

    # One that was tried with `bottlegan simulate` is deployed as it is, but for its labs.
    asked = SimulationConfig() if config is None else load(SimulationConfig, config)
    prior = None if config is None or asked.labs.prior is None else config.parent / asked.labs.prior
    check_paths(prior)
    write(folder, host, [lab.strip() for lab in labs.split(",") if lab.strip()], asked.federation, prior)
    typer.echo(f"Wrote {folder}. Begin with {folder / 'README.md'}; server/ and labs/ hold secret keys.")
