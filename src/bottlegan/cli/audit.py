"""`bottlegan audit`: check whether a log was changed."""

from pathlib import Path
from typing import Annotated

import typer


def audit(
    log: Annotated[
        Path, typer.Argument(help="A log (.jsonl), or a folder whose logs are all checked.", show_default=False)
    ],
    head: Annotated[
        str | None,
        typer.Option(help="Head that was noted earlier. The log must still contain that line.", show_default=False),
    ] = None,
) -> None:
    """Check that no line of a log was changed, added, moved or removed, and print its head.

    Every line contains the SHA-256 of the line before it. Keep the head somewhere else, on paper or with a partner: it
    also reveals a log that was cut off or rewritten. The exit status is 2 if a log was changed.

    Example: bottlegan audit server/run/federation.jsonl
    Example: bottlegan audit run --head 6b0f...
    """
    from bottlegan.core.audit import verify
    from bottlegan.core.errors import InputError, MissingError

    logs = sorted(log.rglob("*.jsonl")) if log.is_dir() else [log]
    if not logs:
        raise MissingError(f"{log}: holds no log (*.jsonl); check the path")
    if head is not None and len(logs) > 1:
        raise InputError(f"{log}: holds {len(logs)} logs, but --head belongs to one; name that log")
    for path in logs:
        audited = verify(path, head)
        typer.echo(f"{path}: {audited.lines} lines, none was changed")
        typer.echo(f"  head {audited.head}")
        for line in audited.torn:
            typer.echo(f"  line {line} was cut short by a crash or a full disk")
