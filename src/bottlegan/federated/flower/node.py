"""A lab's node: Flower's SuperNode with shorter pauses between messages.

After every reply, Flower's node finds no new message, because the server has only just received the reply, and sleeps
for three seconds. That was nearly half the time per message. Flower has no setting for it.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

WAITS: Mapping[float, float] = {3: 1.0, 0.5: 0.1}
"""Flower's pauses in seconds and ours: before it asks the server again, and before it looks for its own reply."""


def run_supernode(words: Sequence[str]) -> None:
    """Run Flower's `flower-supernode` with these arguments."""
    loop: Any = import_module("flwr.supernode.start_client_internal")
    loop.time = SimpleNamespace(sleep=sleep)
    sys.argv = ["flower-supernode", *words]
    # By name, because the package exports a function under the module's name.
    command: Any = import_module("flwr.supernode.cli.flower_supernode")
    command.flower_supernode()


def sleep(seconds: float) -> None:
    """Sleep as long as Flower asks for, or less."""
    time.sleep(WAITS.get(seconds, seconds))
