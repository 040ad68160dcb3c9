"""Progress bars in the terminal."""

from collections.abc import Iterable, Iterator

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
    ) -> Iterator[Item]:
        """Yield `items` and show how many of `total` are done, the speed, and the time left."""
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
