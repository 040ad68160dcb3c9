"""How long-running work reports its progress: a protocol, and a JSONL log of events.

Work takes a `Progress`, wraps its loops in `track` and calls `event` for anything worth recording. The caller decides
what is shown and where: the command line passes a Rich progress bar; tests pass nothing and get `Silent`.
"""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar

from bottlegan.core.audit import Chain

Item = TypeVar("Item")
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Unit(NamedTuple):
    """The size of an item of work, from which its speed follows."""

    amount: float
    name: str


class Progress(Protocol):
    """What long-running work reports to."""

    def track(
        self, items: Iterable[Item], label: str, total: int | None = None, unit: Unit | None = None
    ) -> Iterator[Item]:
        """Yield `items` and show how many of `total` are done; with a unit, also show the speed."""
        ...

    def event(self, kind: str, **fields: Json) -> None:
        """Record an event of the given `kind`."""
        ...


class Silent:
    """Shows nothing and records nothing."""

    def track(
        self, items: Iterable[Item], label: str, total: int | None = None, unit: Unit | None = None
    ) -> Iterator[Item]:
        """Yield `items`."""
        yield from items

    def event(self, kind: str, **fields: Json) -> None:
        """Do nothing."""


class EventLog(Silent):
    """Appends each event to a file as one JSON object per line, chained to the line before: see `audit`."""

    def __init__(self, path: Path) -> None:
        """Open `path` for appending; its folder must exist."""
        self._chain = Chain(path)

    def event(self, kind: str, **fields: Json) -> None:
        """Append the event with the time in seconds since 1970. It is on disk when this returns."""
        self._chain.append({"time": round(time.time(), 3), "kind": kind, **fields})

    def __enter__(self) -> Self:
        """Return the open log."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._chain.close()
