"""How long work reports itself: a protocol for progress, and a JSONL log of events.

Work takes a `Progress` and calls `track` around its loops and `event` at what is worth keeping. What is shown, and
where, is the caller's business: the command line passes a Rich progress bar, tests pass nothing and get `Silent`.
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
    """What an item of work amounts to, so that its speed can be told."""

    amount: float
    name: str


class Progress(Protocol):
    """What long work reports to."""

    def track(
        self, items: Iterable[Item], label: str, total: int | None = None, unit: Unit | None = None
    ) -> Iterator[Item]:
        """Yield `items`, showing how many of `total` are done, and how much a second, if one has a unit."""
        ...

    def event(self, kind: str, **fields: Json) -> None:
        """Record that something of the given `kind` happened."""
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
    """Appends each event to a file as one JSON object a line, chained to the one before: see `audit`."""

    def __init__(self, path: Path) -> None:
        """Open `path` for appending; its folder must exist."""
        self._chain = Chain(path)

    def event(self, kind: str, **fields: Json) -> None:
        """Append the event with the time in seconds since 1970; it is on disk when this returns."""
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
