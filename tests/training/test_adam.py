import subprocess
import sys

import torch
from torch import nn

from bottlegan.training.adam import Adam


def train(optimizer: str) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(1, 4), nn.Conv2d(4, 1, 1))
    with torch.no_grad():
        for each in network.parameters():
            each.copy_(torch.randn(each.shape, generator=random))
    unused = nn.Parameter(torch.ones(3))
    parameters = [*network.parameters(), unused]
    steps = torch.optim.Adam(parameters, lr=0.01) if optimizer == "torch" else Adam(parameters, 0.01)
    for _ in range(5):
        steps.zero_grad()
        network(torch.randn(2, 3, 8, 8, generator=random)).square().mean().backward()
        steps.step()
    return [each.detach() for each in parameters]


def test_it_is_torchs_adam_to_the_bit() -> None:
    for ours, theirs in zip(train("ours"), train("torch"), strict=True):
        assert torch.equal(ours, theirs)


def test_it_does_not_import_torchs_compiler() -> None:
    program = """
import sys, torch
from bottlegan.training.adam import Adam
weight = torch.ones(2, requires_grad=True)
optimizer = Adam([weight], 0.1)
optimizer.zero_grad()
weight.square().sum().backward()
optimizer.step()
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
