"""A federation on one machine in Flower's simulation engine: the apps of a deployment, in several worker processes."""

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
from bottlegan.federated.flower.exchange import FlowerExchange
from bottlegan.federated.server.config import FederationConfig
from bottlegan.federated.server.federation import run_federation
from bottlegan.federated.server.rounds import State
from bottlegan.imaging.files import Pixels

SIMULATION_POLL_SECONDS = 0.02
START_SECONDS = 300.0
IN_FLIGHT = 8
"""Messages for each worker that are on their way at once: enough to keep it busy, and few enough for any memory."""
STORE_BYTES = 256_000_000
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # a worker for each core: threads inside torch would only fight over them
    "RAY_max_direct_call_object_size": "16000000",  # bytes; through Ray's shared memory, small ones take twice the time
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's future behavior, of which it else warns
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray listens on loopback only, as it always does on these systems
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
    """Run a federation of labs, each at its lab.toml, with as many worker processes as there are cores.

    Raises what `run_federation` raises. When it returns, no process of the simulation is left.
    """
    states: list[State] = []
    cores = workers or min(len(labs), len(os.sched_getaffinity(0)))
    server = ServerApp()

    # `run_simulation` gives its apps no configuration; they are made here, around it, instead.
    @server.main()
    def main(grid: Grid, context: Context) -> None:
        exchange = FlowerExchange(grid, list(labs), SIMULATION_POLL_SECONDS, IN_FLIGHT * cores)
        exchange.wait(len(labs), START_SECONDS)
        states.append(
            run_federation(exchange, config, folder, reference_set=reference_set, prior=prior, progress=progress)
        )

    client = build_client_app([path.resolve() for path in labs.values()])
    with _quiet(), tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as temporary:
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
    """Return a token that this process's workers need to reach Ray, so that other users of the machine cannot.

    Ray reads it once, when it is imported. A process that has used Ray before, without a token, goes on without one.
    """
    return {} if "ray" in sys.modules else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextmanager
def _quiet() -> Iterator[None]:
    """Set what the workers inherit, silence Flower's own chatter, and put everything back."""
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
