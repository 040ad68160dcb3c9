"""A lab's node: Flower's SuperNode, which idles less between two messages.

After every reply, Flower's node finds nothing new, because the server has only just got it, and sleeps for three
seconds. That was nearly half of what a message took. Flower has no setting for it.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

WAITS: Mapping[float, float] = {3: 1.0, 0.5: 0.1}
"""Seconds that Flower sleeps, and that we do: until it asks the server again, and until it looks for its own reply."""


def run_supernode(words: Sequence[str]) -> None:
    """Be Flower's `flower-supernode` with these arguments."""
    loop: Any = import_module("flwr.supernode.start_client_internal")
    loop.time = SimpleNamespace(sleep=sleep)
    sys.argv = ["flower-supernode", *words]
    # By its name: what its package calls so is the function in it.
    command: Any = import_module("flwr.supernode.cli.flower_supernode")
    command.flower_supernode()


def sleep(seconds: float) -> None:
    """Sleep as long as Flower wants to, or less."""
    time.sleep(WAITS.get(seconds, seconds))
