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
    # By name, because the package exports a function under the module's name.
    command: Any = import_module("flwr.supernode.cli.flower_supernode")
    monkeypatch.setattr(command, "flower_supernode", lambda: told.append(sys.argv))
    monkeypatch.setattr("time.sleep", slept.append)
    node.run_supernode(["--port", "1"])
    assert told == [["flower-supernode", "--port", "1"]]

    # Everything that the installed version of Flower uses of the module.
    text = inspect.getsource(loop)
    assert set(re.findall(r"\btime\.(\w+)\(", text)) == {"sleep"}
    asked = {float(seconds) for seconds in re.findall(r"time\.sleep\(([\d.]+)\)", text)}
    assert asked == set(node.WAITS)
    for seconds in sorted(asked):
        loop.time.sleep(seconds)
    assert slept == [0.1, 1.0]
