"""Slides of a folder in several processes of this machine.

Each process is a pool of one. If it dies, the slide that killed it is known, and no other slide is lost. All hold one
end of a pipe whose other end only the first process has. When that end closes, or the first process dies, they stop.
"""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from threading import Event, Lock, Thread

from bottlegan.core.progress import Item, Progress, Silent, Unit
from bottlegan.normalize.choice import ChosenMap, MakeMap, MapChoice, Source
from bottlegan.normalize.slides.folder import Outcome, Pair, Runner, map_one
from bottlegan.normalize.slides.one import SlideOptions

TRIES = 2
"""Attempts at a slide if its process dies. It may have died because others took the memory."""
LABEL = "slides"


@dataclass(frozen=True)
class Job:
    """What all slides of a folder share."""

    choice: MapChoice
    options: SlideOptions
    threads: int


class _UntilStopped(Silent):
    """Shows nothing, and interrupts tracked work when this process must stop."""

    def track(
        self, items: Iterable[Item], label: str, total: int | None = None, unit: Unit | None = None
    ) -> Iterator[Item]:
        for item in items:
            if _stopped.is_set():
                raise KeyboardInterrupt
            yield item


_busy, _stopped = Lock(), Event()
_UNTIL_STOPPED = _UntilStopped()


def map_in_worker(pair: Pair, job: Job) -> Outcome:
    """Map one slide in a worker process. The first slide prepares the maps for all."""

    def make_map(source: Source) -> ChosenMap:
        return _prepare(job.choice)(source)

    with _busy:
        return map_one(pair, make_map, job.options, _UNTIL_STOPPED, job.threads)


@lru_cache(maxsize=1)
def _prepare(choice: MapChoice) -> MakeMap:
    return choice.prepare()


def fail(pair: Pair, remedy: str) -> Outcome:
    """Return the outcome of a slide whose worker died at each attempt."""
    reason = f"all {TRIES} workers that tried it died, which happens when memory runs out"
    return Outcome(*pair, "failed", error=f"{pair.source}: {reason}; {remedy}")


def run_in_processes(workers: int) -> Runner:
    """Return a runner that maps `workers` slides at a time, each in a process with its share of the cores.

    A script must call it under `if __name__ == "__main__":`, because each process imports the script.
    """

    def run(pairs: Sequence[Pair], choice: MapChoice, options: SlideOptions, progress: Progress) -> Iterator[Outcome]:
        count = min(workers, len(pairs))
        job = Job(choice, options, max(1, (os.cpu_count() or 1) // count))
        yield from progress.track(_run_all(pairs, job, count), LABEL, len(pairs))

    return run


def _run_all(pairs: Sequence[Pair], job: Job, count: int) -> Iterator[Outcome]:
    """Give each idle process a slide, and retry the slide of a dead process in a new one."""
    waiting = deque((pair, 1) for pair in pairs)
    running: dict[Future[Outcome], tuple[ProcessPoolExecutor, Pair, int]] = {}
    with _starting() as start:
        idle = [start() for _ in range(count)]
        while waiting or running:
            while waiting and idle:
                pool, (pair, tries) = idle.pop(), waiting.popleft()
                with _without_interrupts():
                    running[pool.submit(map_in_worker, pair, job)] = (pool, pair, tries)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                pool, pair, tries = running.pop(future)
                if not isinstance(future.exception(), BrokenProcessPool):
                    idle.append(pool)
                    yield future.result()
                    continue
                idle.append(start())
                if tries < TRIES:
                    waiting.appendleft((pair, tries + 1))
                else:
                    yield fail(pair, "try it with fewer --workers")


@contextmanager
def _starting() -> Iterator[Callable[[], ProcessPoolExecutor]]:
    """Yield a function that starts a pool of one process. All have ended when the block ends, however it ends."""
    context = multiprocessing.get_context("spawn")  # a forked process may wait forever for threads that it lacks
    stop, held = context.Pipe(duplex=False)
    pools: list[ProcessPoolExecutor] = []

    def start() -> ProcessPoolExecutor:
        pools.append(ProcessPoolExecutor(1, context, _watch, (stop,)))
        return pools[-1]

    try:
        yield start
    finally:
        held.close()
        for pool in pools:
            pool.shutdown(cancel_futures=True)
        stop.close()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hide Ctrl-C, which a terminal sends to all processes, from processes started here: the first one stops them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(stop: Connection) -> None:
    """End this process when the other end of the pipe closes, after removing a half-written slide."""

    def end() -> None:
        stop.poll(None)
        _stopped.set()
        with _busy:
            os._exit(1)

    Thread(target=end, daemon=True).start()
