"""Slides of a folder as tasks of a Ray cluster of one or more machines.

Only paths are sent: any machine with a free core reads and writes a slide. So slides, model and output folder must be
on a file system that all machines mount at the same path, and BottleGAN must be installed on all of them.
"""

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.progress import Progress
from bottlegan.normalize.choice import MapChoice
from bottlegan.normalize.slides.folder import Outcome, Pair, Runner
from bottlegan.normalize.slides.one import SlideOptions
from bottlegan.normalize.slides.workers import LABEL, TRIES, Job, fail, map_in_worker

ANY = "auto"
"""Means the cluster that runs on this machine."""
REACH_SECONDS, CANCEL_SECONDS = 5.0, 30.0
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # otherwise Ray reports its use to its makers
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run` it would upload the working directory
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # its future behavior; otherwise it warns
    "RAY_task_oom_retries": str(TRIES - 1),  # otherwise it retries a slide that is too large forever
}


def run_on_ray(address: str) -> Runner:
    """Return a runner that maps each slide in a task with one core, on the cluster at an address.

    Args:
        address: `auto` for the cluster of this machine, HOST:PORT for one that this machine belongs to, or
            ray://HOST:PORT for any.
    """

    def run(pairs: Sequence[Pair], choice: MapChoice, options: SlideOptions, progress: Progress) -> Iterator[Outcome]:
        places = [Pair(pair.source.absolute(), pair.target.absolute()) for pair in pairs]
        like = None if choice.like is None else choice.like.absolute()
        job = Job(replace(choice, model=choice.model.absolute(), like=like), options, threads=1)
        with _connected(address) as ray:
            yield from progress.track(_run_all(ray, places, job), LABEL, len(pairs))

    return run


def _run_all(ray: Any, pairs: Sequence[Pair], job: Job) -> Iterator[Outcome]:
    task = ray.remote(num_cpus=1, max_retries=TRIES - 1)(map_in_worker)
    running = {task.remote(pair, job): pair for pair in pairs}
    try:
        while running:
            (done,), _ = ray.wait(list(running), num_returns=1)
            yield _get(ray, done, running.pop(done))
    finally:
        for task in running:
            ray.cancel(task)
        if running:
            # Disconnecting kills running tasks before they can remove half-written files.
            ray.wait(list(running), num_returns=len(running), timeout=CANCEL_SECONDS)


def _get(ray: Any, done: Any, pair: Pair) -> Outcome:
    try:
        outcome: Outcome = ray.get(done)
    except ray.exceptions.RayTaskError:
        raise  # a bug
    except ray.exceptions.RayError:
        return fail(pair, "see the logs of the Ray cluster")
    return outcome


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Yield Ray, connected to a cluster that keeps running after the block."""
    ray = _import_ray()
    try:
        if address != ANY:
            _reach(address)
        # No runtime environment, so that only the names of slides leave this machine.
        ray.init(address, runtime_env={}, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"{address}: there is no usable Ray cluster ({reason}); start one with `ray start --head`, "
            "then give `auto`, HOST:PORT or ray://HOST:PORT"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Refuse an address where nothing listens. Ray itself would try for minutes."""
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.hostname is None or place.port is None:
        raise ValueError("it has no host and port")
    socket.create_connection((place.hostname, place.port), REACH_SECONDS).close()


def _import_ray() -> Any:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray  # noqa: PLC0415 - optional, and it reads the environment when it is imported
    except ImportError:
        raise MissingError("--ray needs Ray, which is not installed: pip install 'bottlegan[federated]'") from None
    return ray
