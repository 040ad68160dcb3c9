"""The server as a Flower app: reaches the clients through Flower's grid, and runs the federation.

Its run configuration is a flattened `FederationConfig`, and a `ServerConfig` whose keys start with `server.`.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from bottlegan.core.config import document, parse
from bottlegan.core.errors import ConfigError, InputError
from bottlegan.core.files import keeping_private
from bottlegan.data.patches import list_patches
from bottlegan.federated.client.holdings import find_labs
from bottlegan.federated.flower.exchange import FlowerExchange
from bottlegan.federated.protocol.exchange import Scalar
from bottlegan.federated.server.config import FederationConfig, unflatten
from bottlegan.federated.server.federation import run_federation
from bottlegan.federated.server.folder import LOG, holds_run, logging_to
from bottlegan.federated.server.rounds import begin
from bottlegan.imaging.files import Pixels
from bottlegan.models.weights import read_weights

PREFIX = "server."
BAD_INPUT = "bad input: "
"""Begins the error of a run that only another input can fix; `server/run.sh` looks for it."""
log = logging.getLogger(__name__)


@document
class ServerConfig:
    """Settings that only the server's own machine needs."""

    folder: str = "run"
    """Folder of the run. A relative path starts where the SuperLink was started."""
    resume: bool = False
    """Whether to resume the run in the folder."""
    reference: str = ""
    """Folder with the public reference set, or empty. Required unless phase1.method is code."""
    prior: str = ""
    """Model file for fitting styles, which is sent to labs; empty for the shipped one."""
    clients: int = 2
    """Number of clients to wait for before the start."""
    wait: float = 600.0
    """Seconds to wait for them."""
    labs: str = ""
    """In a simulation: folder with one sub-folder per lab, each with a lab.toml. Empty in a deployment."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.clients < 1 or self.wait < 0:
            raise ConfigError("server: clients must be at least 1, wait at least 0")


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run configuration describes."""
    values = {key: value for key, value in context.run_config.items() if not key.startswith(PREFIX)}
    own = {key.removeprefix(PREFIX): value for key, value in context.run_config.items() if key.startswith(PREFIX)}
    try:
        server = parse(ServerConfig, own, "run configuration, server")
        labs = find_labs(Path(server.labs)) if server.labs else {}
        serve(FlowerExchange(grid, list(labs)), values, server)
    except InputError as error:
        # Flower shows the operator only the text of an error.
        raise type(error)(f"{BAD_INPUT}{error}") from error


def serve(exchange: FlowerExchange, values: Mapping[str, Scalar], server: ServerConfig) -> None:
    """Wait for the clients, then run or resume the federation."""
    folder = Path(server.folder)
    if holds_run(folder) and not server.resume:
        raise InputError(f"{folder}: holds a run; set server.resume=true to resume it, or choose another folder")
    with keeping_private(), logging_to(folder):
        config, reference_set, prior = prepare(values, server)
        clients = exchange.wait(server.clients, server.wait)
    log.info("%d clients are connected: %s", len(clients), ", ".join(clients))
    run_federation(exchange, config, folder, reference_set=reference_set, prior=prior)
    log.info("The federation is done; its results, and its log %s, are in %s", LOG, folder)


def prepare(
    values: Mapping[str, Scalar], server: ServerConfig
) -> tuple[FederationConfig, list[Pixels] | None, Path | None]:
    """Return configuration, reference set and prior, or refuse them before waiting for any client."""
    config = unflatten(values)
    if config.rounds.least > server.clients:
        raise ConfigError(
            f"server.clients is {server.clients}, but {config.rounds.least} must reply in each round; "
            "raise server.clients, or lower rounds.least"
        )
    begin(config)
    prior = Path(server.prior) if server.prior else None
    if prior is not None:
        read_weights(prior)
    patches = list_patches(Path(server.reference)) if server.reference else []
    return config, [patch.read_image() for patch in patches] or None, prior
