"""A tamper-evident log: one JSON object per line, each with the SHA-256 of the line before it.

Changing, removing, adding or moving a line breaks the chain there. Cutting off the end or rewriting the whole log does
not; only comparing with a head that was noted elsewhere shows it. The head is the SHA-256 of the last line, and
`bottlegan audit` prints it. Each line also carries its own checksum, because no later line protects the last one.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.files import locked

PREVIOUS = "previous"
"""The key of a record that holds the SHA-256 of the line before."""
FIRST = "0" * 64
"""Stands before the first line."""
OWN = "own"
"""The last key of a record: the SHA-256 of the line without it."""


class Chain:
    """Appends lines to a log. Several processes may append to the same log; they take turns."""

    def __init__(self, path: Path) -> None:
        """Open the log at `path`, or create it; its folder must exist."""
        self._file = path.open("a+b")
        self._head, self._end = FIRST, 0

    def append(self, record: dict[str, object]) -> str:
        """Append a record and return the new head. The record is on disk when this returns."""
        with locked(self._file):
            if self._file.seek(0, os.SEEK_END) != self._end:
                self._head = self._find_head()
            line = _vouch(json.dumps({**record, PREVIOUS: self._head}, allow_nan=False).encode())
            self._file.write(line + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._head, self._end = _digest(line), self._file.tell()
        return self._head

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _find_head(self) -> str:
        """Return the digest of the last line. If a crash cut that line short, end it first."""
        last = _read_last(self._file)
        if last and not last.endswith(b"\n"):
            self._file.write(b"\n")
        return _digest(last.rstrip(b"\n")) if last else FIRST


@dataclass(frozen=True)
class Audit:
    """Summary of an intact log."""

    lines: int
    head: str
    torn: tuple[int, ...]
    """Lines that a crash cut short. What is left of them is unchanged: the next line holds its digest."""


def verify(path: Path, noted: str | None = None) -> Audit:
    """Return the summary of a log, or raise `InputError` naming the first line that was changed.

    Args:
        path: The log.
        noted: A head that was noted earlier; the log must still contain its line.
    """
    if not path.is_file():
        raise MissingError(f"{path}: there is no such log; check the path")
    head, count, seen = FIRST, 0, noted is None
    torn: list[int] = []
    with path.open("rb") as file:
        for count, raw in enumerate(file, 1):
            line = raw.rstrip(b"\n")
            previous = _read_previous(line)
            if previous is None:
                # The next line's digest protects this one; of two such lines in a row, nothing protects the first.
                if torn and torn[-1] == count - 1:
                    raise InputError(f"{path}: lines {count - 1} and {count} are no records; the log is damaged")
                torn.append(count)
            elif not _is_vouched(line):
                raise InputError(f"{path}: line {count} was changed, or is damaged; compare with a backup")
            elif previous != head:
                raise InputError(
                    f"{path}: the chain is broken at line {count}: a line before it was changed, added or removed; "
                    "compare with a backup"
                )
            head = _digest(line)
            seen = seen or head == noted
    if not seen:
        raise InputError(f"{path}: no line has the head {noted}: lines were cut off, or the log was written anew")
    return Audit(count, head, tuple(torn))


def read_head(path: Path) -> str:
    """Return the head of a log; if there is no log, the head of an empty one."""
    if not path.is_file():
        return FIRST
    with path.open("rb") as file:
        last = _read_last(file)
    return _digest(last.rstrip(b"\n")) if last else FIRST


def _read_last(file: BinaryIO) -> bytes:
    """Return the last line, reading only the end of a long log."""
    size, wanted = file.seek(0, os.SEEK_END), 4096
    while True:
        file.seek(max(0, size - wanted))
        lines = file.read().splitlines(keepends=True)
        if len(lines) > 1 or wanted >= size:
            return lines[-1] if lines else b""
        wanted *= 4


def _read_previous(line: bytes) -> str | None:
    """Return the digest that a line records for the line before it; None if it is not a record."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    previous = record.get(PREVIOUS) if isinstance(record, dict) else None
    return previous if isinstance(previous, str) else ""


def _vouch(line: bytes) -> bytes:
    """Return a line with its own checksum added at the end."""
    return line[:-1] + f', "{OWN}": "{_digest(line)}"}}'.encode()


def _is_vouched(line: bytes) -> bool:
    rest, separator, _ = line.rpartition(f', "{OWN}": "'.encode())
    return bool(separator) and _vouch(rest + b"}") == line


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
