"""The cost of starting the client's app."""

import subprocess
import sys


def test_the_client_app_imports_nothing_slow_that_a_message_may_not_need() -> None:
    # Every message of a deployment starts a process.
    program = "import sys, bottlegan.federated.flower.client_app; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "torch" in imported.split()
    assert not {"numba", "scipy", "torch._dynamo", "torchmetrics"} & set(imported.split())
