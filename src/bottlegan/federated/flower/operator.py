"""The operator of a federation, who alone may start runs and decide which labs may connect.

Flower's SuperLink has no accounts and takes orders from anyone who reaches its port. Ours demands a token from a file
that only the server's owner can read. Labs identify themselves with their node's key, which gives no rights here. The
two functions that are replaced are Flower's own hooks for authentication.
"""

import hmac
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import flwr.cli.utils as flower_cli
from flwr.cli.auth_plugin import NoOpCliAuthPlugin
from flwr.cli.supernode.register import try_load_public_key
from flwr.cli.typing import SuperLinkConnection
from flwr.common.constant import ACCESS_TOKEN_KEY
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.supercore.auth.typing import AccountInfo
from flwr.superlink.auth_plugin.noop_auth_plugin import NoOpControlAuthnPlugin

from bottlegan.core.errors import FederationError, InputError, MissingError

Metadata = Sequence[tuple[str, str | bytes]]
GONE = "unregistered"


def read_token(path: Path) -> str:
    """Return the operator's token."""
    if not path.is_file():
        raise MissingError(f"{path}: there is no operator's token; make one with: bottlegan deploy rotate --operator")
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < 32:
        raise InputError(f"{path}: is too short for a token; make a new one with: bottlegan deploy rotate --operator")
    return token


class AskForToken(NoOpControlAuthnPlugin):
    """Rejects orders to the SuperLink without the token."""

    def __init__(self, token: str) -> None:
        """Accept only this token."""
        self.token = token.encode()

    def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
        """Return whether the metadata hold the token, and the account."""
        token = dict(metadata).get(ACCESS_TOKEN_KEY, "")
        if not hmac.compare_digest(token.encode() if isinstance(token, str) else token, self.token):
            return False, None
        return super().validate_tokens_in_metadata(metadata)


class ShowToken(NoOpCliAuthPlugin):
    """Sends the token with every order."""

    def __init__(self, token: str) -> None:
        """Send this token."""
        self.token = token

    def write_tokens_to_metadata(self, metadata: Metadata) -> Metadata:
        """Return the metadata with the token."""
        return [*metadata, (ACCESS_TOKEN_KEY, self.token)]


def run_superlink(token: Path, words: Sequence[str]) -> None:
    """Run Flower's `flower-superlink` with these arguments, but accept orders only with the token."""
    plugin = AskForToken(read_token(token))
    # By name, because the package exports a function under the module's name.
    module: Any = import_module("flwr.superlink.cli.flower_superlink")
    module.load_control_authn_plugin = lambda: plugin
    _run(module.flower_superlink, "flower-superlink", words)


def run_flwr(token: Path, words: Sequence[str]) -> None:
    """Run Flower's `flwr` with these arguments, and send the token."""
    from flwr.cli.app import app  # noqa: PLC0415 - nothing else needs all of its commands

    plugin = ShowToken(read_token(token))
    flower_cli.load_cli_auth_plugin_from_connection = lambda *_, **__: plugin
    _run(app, "flwr", words)


@dataclass(frozen=True)
class Node:
    """A registered node."""

    number: int
    name: str
    key: bytes


class Operator:
    """Decides which labs may connect."""

    def __init__(self, address: str, authority: Path, token: Path) -> None:
        """Connect to the SuperLink at `address`, whose certificate is signed by `authority`."""
        connection = SuperLinkConnection(
            name="consortium", address=address, root_certificates=str(authority.resolve()), insecure=False
        )
        self._address = address
        self._client: Any = flower_cli.init_http_client_from_connection(connection, ShowToken(read_token(token)))

    def nodes(self) -> list[Node]:
        """Return all nodes that may connect."""
        nodes = self._call("ListNodes", ListNodesRequest()).nodes_info
        return [Node(node.node_id, node.name, node.public_key) for node in nodes if node.status != GONE]

    def register(self, name: str, public_key: Path) -> bool:
        """Let a node with this key connect under this name; return False if it was registered already.

        A second key under the same name is refused, because nobody could tell which one is the lab.
        """
        key = try_load_public_key(public_key)
        for node in self.nodes():
            if node.name == name and node.key == key:
                return False
            if node.name == name:
                raise InputError(f"another key of {name} is registered already; revoke or rotate it first")
            if node.key == key:
                raise InputError(f"the key of {name} is registered already, under the name {node.name}")
        self._call("RegisterNode", RegisterNodeRequest(public_key=key, name=name))
        return True

    def unregister(self, name: str) -> int:
        """Unregister all nodes with this name; return their number."""
        nodes = [node for node in self.nodes() if node.name == name]
        for node in nodes:
            self._call("UnregisterNode", UnregisterNodeRequest(node_id=node.number))
        return len(nodes)

    def _call(self, method: str, request: Any) -> Any:
        try:
            return getattr(self._client, method)(request)
        # Flower raises many kinds of errors when a call fails.
        except Exception as error:
            raise FederationError(
                f"the SuperLink at {self._address} did not do {method} ({type(error).__name__}: {error}); "
                "start server/superlink.sh first, and check that operator.token belongs to this server"
            ) from None


def _run(command: Callable[[], Any], name: str, words: Sequence[str]) -> None:
    sys.argv = [name, *words]
    command()
