"""A federation in Flower's simulation engine: the apps of a deployment, in worker processes on one machine."""

import logging
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from flwr.app import ConfigRecordValues, Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from bottlegan.core.progress import Progress
from bottlegan.federated.flower.client_app import build_client_app
from bottlegan.federated.flower.engine import connected
from bottlegan.federated.flower.exchange import FlowerExchange
from bottlegan.federated.server.config import FederationConfig
from bottlegan.federated.server.federation import run_federation
from bottlegan.federated.server.rounds import State
from bottlegan.imaging.files import Pixels

SIMULATION_POLL_SECONDS = 0.02
START_SECONDS = 300.0
IN_FLIGHT = 8
"""Messages per worker on their way at once: enough to keep it busy, few enough to fit into memory."""
STORE_BYTES = 256_000_000
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # one worker per core; more threads would only compete
    "RAY_max_direct_call_object_size": "16000000",  # bytes; smaller messages take twice the time in shared memory
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's future behavior; avoids a warning
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # makes Ray listen on loopback only
}


def run(
    labs: Mapping[str, Path],
    config: FederationConfig,
    folder: Path,
    *,
    reference_set: Sequence[Pixels] | None = None,
    prior: Path | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> State:
    """Run a federation of labs, each given by its lab.toml, with one worker process per core.

    Raises the errors of `run_federation`. Leaves no process of the simulation behind.
    """
    states: list[State] = []
    cores = workers or min(len(labs), len(os.sched_getaffinity(0)))
    server = ServerApp()

    # The apps are built here as closures, because `run_simulation` gives them no configuration.
    @server.main()
    def main(grid: Grid, context: Context) -> None:
        exchange = FlowerExchange(
            grid, list(labs), SIMULATION_POLL_SECONDS, IN_FLIGHT * cores, pause=line.wait, sent=line.send
        )
        exchange.wait(len(labs), START_SECONDS)
        states.append(
            run_federation(exchange, config, folder, reference_set=reference_set, prior=prior, progress=progress)
        )

    client = build_client_app([path.resolve() for path in labs.values()])
    with (
        _quiet(),
        connected() as line,
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as temporary,
    ):
        init: dict[str, ConfigRecordValues] = {
            "num_cpus": cores,
            "object_store_memory": STORE_BYTES,
            "log_to_driver": False,
            "_temp_dir": temporary,
        }
        run_simulation(
            server, client, len(labs), backend_config={"init_args": init, "client_resources": {"num_cpus": 1}}
        )
    return states[0]


@cache
def make_token() -> dict[str, str]:
    """Return the environment with a token for Ray, which keeps other users of the machine out.

    Ray reads it once, on import. A process that has used Ray without a token continues without one.
    """
    return {} if "ray" in sys.modules else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextmanager
def _quiet() -> Iterator[None]:
    """Set the workers' environment and silence Flower's log; restore both afterwards."""
    before, logger = dict(os.environ), logging.getLogger("flwr")
    level = logger.level
    os.environ.update(ENVIRONMENT | make_token())
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        os.environ.clear()
        os.environ.update(before)
