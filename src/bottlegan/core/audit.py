"""A log that shows whether it was changed: one JSON object a line, each with the SHA-256 of the line before it.

Whoever changes, removes, adds or moves a line breaks the chain there. Whoever cuts off the end, or writes the whole log
anew, does not; that shows only beside a head that was noted elsewhere. The head is the SHA-256 of the last line, which
`bottlegan audit` prints. Each line has a checksum of its own, too: nothing comes after the last one to vouch for it.
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
    """Appends lines to a log; several processes may, one line at a time."""

    def __init__(self, path: Path) -> None:
        """Go on with the log at `path`, or begin it; its folder must exist."""
        self._file = path.open("a+b")
        self._head, self._end = FIRST, 0

    def append(self, record: dict[str, object]) -> str:
        """Write a record behind the last line, on disk before this returns, and return the new head."""
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
        """Return the digest of the last line, ending it first if a crash kept that from happening."""
        last = _read_last(self._file)
        if last and not last.endswith(b"\n"):
            self._file.write(b"\n")
        return _digest(last.rstrip(b"\n")) if last else FIRST


@dataclass(frozen=True)
class Audit:
    """What a log that is whole amounts to."""

    lines: int
    head: str
    torn: tuple[int, ...]
    """Lines that a crash cut short. What is left of them is as it was written, for the next line vouches for it."""


def verify(path: Path, noted: str | None = None) -> Audit:
    """Return what a log amounts to, or raise `InputError` with the first line that is not as it was written.

    Args:
        path: The log.
        noted: A head that was noted earlier; the log must still hold the line that it belongs to.
    """
    if not path.is_file():
        raise MissingError(f"{path}: there is no such log; check the path")
    head, count, seen = FIRST, 0, noted is None
    torn: list[int] = []
    with path.open("rb") as file:
        for count, raw in enumerate(file, 1):
            line = raw.rstrip(b"\n")
            said = _read_previous(line)
            if said is None:
                # The next line vouches for this one, but nothing would for the first of two such lines.
                if torn and torn[-1] == count - 1:
                    raise InputError(f"{path}: lines {count - 1} and {count} are no records; the log is damaged")
                torn.append(count)
            elif not _is_vouched(line):
                raise InputError(f"{path}: line {count} was changed, or is damaged; compare with a backup")
            elif said != head:
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
    """Return the head of a log; that of an empty one, if there is none."""
    if not path.is_file():
        return FIRST
    with path.open("rb") as file:
        last = _read_last(file)
    return _digest(last.rstrip(b"\n")) if last else FIRST


def _read_last(file: BinaryIO) -> bytes:
    """Return the last line, without reading more of a long log than its end."""
    size, wanted = file.seek(0, os.SEEK_END), 4096
    while True:
        file.seek(max(0, size - wanted))
        lines = file.read().splitlines(keepends=True)
        if len(lines) > 1 or wanted >= size:
            return lines[-1] if lines else b""
        wanted *= 4


def _read_previous(line: bytes) -> str | None:
    """Return what a line says of the one before it; None if it is no record."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    said = record.get(PREVIOUS) if isinstance(record, dict) else None
    return said if isinstance(said, str) else ""


def _vouch(line: bytes) -> bytes:
    """Return a line with its own checksum at its end."""
    return line[:-1] + f', "{OWN}": "{_digest(line)}"}}'.encode()


def _is_vouched(line: bytes) -> bool:
    rest, separator, _ = line.rpartition(f', "{OWN}": "'.encode())
    return bool(separator) and _vouch(rest + b"}") == line


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
