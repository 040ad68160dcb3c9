"""Named random streams from one root seed.

Every random choice draws from a generator made here, never from a global one. A stream depends only on the root seed
and its own name, so adding, removing or reordering other work never changes its numbers.
"""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

Name = str | int


def derive(seed: int, *names: Name) -> int:
    """Return the 63-bit seed of the stream `names` under the root `seed`."""
    path = "/".join([str(seed), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "little") >> 1


def numpy_stream(seed: int, *names: Name) -> np.random.Generator:
    """Return the NumPy generator of the stream `names` under the root `seed`."""
    return np.random.default_rng(derive(seed, *names))


def torch_stream(seed: int, *names: Name) -> "torch.Generator":
    """Return the torch generator of the stream `names` under the root `seed`."""
    import torch  # noqa: PLC0415 - most callers need random numbers but not torch

    return torch.Generator().manual_seed(derive(seed, *names))
