"""A network of your own, for a federation.

A factory is any function that returns an `nn.Module` which maps images (N, 3, H, W) to logits (N, C, H, W). A
federation names it as `package.module:function`, and each lab allows it by that name in its `lab.toml`. It must be
installed in every lab. [A federation of three labs](federation.md) uses this one.
"""

from torch import nn


def build(classes: int, width: int = 8) -> nn.Module:
    """Return a small fully convolutional network; `classes` is filled in by the federation."""
    return nn.Sequential(
        nn.Conv2d(3, width, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=2, dilation=2),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=4, dilation=4),
        nn.ReLU(),
        nn.Conv2d(width, classes, 1),
    )
