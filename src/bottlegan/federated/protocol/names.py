"""Valid names of labs, which become parts of folders, commands and logs."""

import re

from bottlegan.core.errors import InputError

LAB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def check_lab(name: str) -> None:
    """Refuse a name that cannot be a folder or a word of a command."""
    if not LAB.fullmatch(name):
        raise InputError(f"a lab cannot be called {name[:80]!r}; use letters, digits, - and _, beginning with neither")
