"""The handshake when a client joins: server and client must have the same versions, prior and network.

Otherwise nothing would fail at once, but weights that do not belong together would be averaged.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bottlegan import __version__
from bottlegan.core.config import document, parse, to_values
from bottlegan.federated.protocol.exchange import RefusalError
from bottlegan.federated.protocol.phase2 import Phase2Config, draw_network
from bottlegan.federated.protocol.validation import printable
from bottlegan.models.networks import exchanged

PROTOCOL = 3
"""Version of the protocol, increased when requests or replies change."""
HANDSHAKE, PRIOR_CONTENT = "handshake", "prior"
"""Names of the setting and tensor with a handshake, and of the tensor with the federation's prior."""
LONGEST = 1000
"""Largest size of a handshake in bytes."""
REMEDY = f"install the same bottlegan on both sides: pip install 'bottlegan[federated]=={__version__}'"


@document
class Handshake:
    """The versions on one side."""

    protocol: int
    package: str
    """Version of this package."""
    prior: str
    """SHA-256 of the model file that styles are fitted to."""
    network: str
    """SHA-256 of the names, shapes and types of all tensors of the network."""


def introduce(config: Phase2Config, prior: Path) -> Handshake:
    """Return this side's handshake for a federation with these settings and this prior."""
    network = digest_network(config)
    return Handshake(protocol=PROTOCOL, package=__version__, prior=digest_file(prior), network=network)


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digest_network(config: Phase2Config) -> str:
    """Return the SHA-256 of the form of the configured network; its weights do not matter."""
    tensors = exchanged(draw_network(config, 0).network)
    form = sorted((name, list(tensor.shape), str(tensor.dtype)) for name, tensor in tensors.items())
    return hashlib.sha256(json.dumps(form).encode()).hexdigest()


def find_difference(client: Handshake, server: Handshake) -> str | None:
    """Return how a client differs from the server, and the remedy; None if it does not."""
    same = f"install the server's version: pip install 'bottlegan[federated]=={printable(server.package)}'"
    if client.protocol != server.protocol:
        return f"it speaks protocol {client.protocol}, the server {server.protocol}; {same}"
    if client.package != server.package:
        return f"it runs bottlegan {printable(client.package)}, the server {printable(server.package)}; {same}"
    if client.prior != server.prior:
        return f"its prior is {_short(client.prior)}, the server's {_short(server.prior)}; {same}"
    if client.network != server.network:
        differ = f"the network it builds is {_short(client.network)}, the server's {_short(server.network)}"
        return f"{differ}; install the same versions of the packages that define the network"
    return None


def to_text(handshake: Handshake) -> str:
    """Return a handshake as text, for a request."""
    return json.dumps(to_values(handshake), sort_keys=True)


def from_text(text: str) -> Handshake:
    """Parse the handshake of a request, or raise `RefusalError`."""
    try:
        return parse(Handshake, json.loads(text), "handshake")
    except (ValueError, RecursionError) as error:
        raise RefusalError(f"the handshake cannot be read ({printable(str(error))}); {REMEDY}") from None


def to_tensor(handshake: Handshake) -> Tensor:
    """Return a handshake as a tensor of bytes, for a reply."""
    return torch.from_numpy(np.frombuffer(to_text(handshake).encode(), np.uint8).copy())


def from_tensor(tensor: Tensor | None) -> Handshake:
    """Parse the handshake of a reply, or raise `RefusalError`."""
    if tensor is None:
        raise RefusalError(f"it does not say which bottlegan it runs; {REMEDY}")
    if tensor.dtype != torch.uint8 or tensor.ndim != 1 or len(tensor) > LONGEST:
        raise RefusalError(f"its handshake is not a short text; {REMEDY}")
    return from_text(tensor.numpy().tobytes().decode("utf-8", errors="replace"))


def _short(digest: str) -> str:
    return printable(digest)[:12]
