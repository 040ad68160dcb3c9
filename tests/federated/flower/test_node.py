import inspect
import re
import sys
import time
from importlib import import_module
from typing import Any

import pytest

from bottlegan.federated.flower import node


def test_flowers_node_sleeps_as_long_as_we_say(monkeypatch: pytest.MonkeyPatch) -> None:
    loop: Any = import_module("flwr.supernode.start_client_internal")
    told: list[list[str]] = []
    slept: list[float] = []
    monkeypatch.setattr(loop, "time", time)
    monkeypatch.setattr("sys.argv", [])
    # By its name: what its package calls so is the function in it.
    command: Any = import_module("flwr.supernode.cli.flower_supernode")
    monkeypatch.setattr(command, "flower_supernode", lambda: told.append(sys.argv))
    monkeypatch.setattr("time.sleep", slept.append)
    node.run_supernode(["--port", "1"])
    assert told == [["flower-supernode", "--port", "1"]]

    # All that Flower uses of the module, in the version that is installed.
    text = inspect.getsource(loop)
    assert set(re.findall(r"\btime\.(\w+)\(", text)) == {"sleep"}
    asked = {float(seconds) for seconds in re.findall(r"time\.sleep\(([\d.]+)\)", text)}
    assert asked == set(node.WAITS)
    for seconds in sorted(asked):
        loop.time.sleep(seconds)
    assert slept == [0.1, 1.0]
