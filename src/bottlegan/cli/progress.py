"""Progress bars in the terminal."""

from collections.abc import Generator, Iterable
from typing import Any
from weakref import WeakSet

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from bottlegan.core.progress import EventLog, Item, Json, Unit

_loops: WeakSet[Generator[Any, None, None]] = WeakSet()
"""The tracked loops, each with its bar."""


class _EndedError(Exception):
    """The work behind a bar has failed."""


def end_bars() -> None:
    """End all bars where they are, before an error is printed: a loop that failed may not be cleared up until later."""
    for loop in list(_loops):
        try:
            loop.throw(_EndedError())
        except (_EndedError, StopIteration, ValueError):
            continue  # a loop that runs just now, in another thread, ends by itself


class SpeedColumn(ProgressColumn):
    """Shows the speed."""

    def __init__(self, unit: Unit) -> None:
        """Take the unit to count in."""
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        """Return the recent speed, or the mean speed when done; nothing before the first item."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed * self._unit.amount:,.1f} {self._unit.name}/s")


class TerminalProgress:
    """Shows each tracked loop on stderr as a bar with the time left, and passes events to a log, if there is one."""

    def __init__(self, log: EventLog | None = None) -> None:
        """Write events to `log`."""
        self._console = Console(stderr=True)
        self._log = log

    def track(
        self, items: Iterable[Item], label: str, total: int | None = None, unit: Unit | None = None
    ) -> Generator[Item, None, None]:
        """Yield `items` and show how many of `total` are done, the speed, and the time left."""
        loop = self._track(items, label, total, unit)
        _loops.add(loop)
        return loop

    def _track(
        self, items: Iterable[Item], label: str, total: int | None, unit: Unit | None
    ) -> Generator[Item, None, None]:
        columns = [
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        ]
        if unit is not None:
            columns.append(SpeedColumn(unit))
        with Bars(*columns, console=self._console) as bars:
            task = bars.add_task(label, total=total)
            try:
                yield from bars.track(items, total=total, task_id=task)
            except GeneratorExit:
                # The caller stopped early because it was done, so the bar ends full and says so.
                done = max(1, bars.tasks[task].completed)
                bars.update(task, description=f"{label} (stopped early)", total=done, completed=done)
                raise

    def event(self, kind: str, **fields: Json) -> None:
        """Record an event of the given `kind`."""
        if self._log is not None:
            self._log.event(kind, **fields)
