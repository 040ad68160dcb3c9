"""The operator of a federation: the only one who may start runs, and say which labs may connect.

Flower's SuperLink has no accounts, and takes such orders from whoever reaches its port. Ours wants a token, which is in
a file of the server that nobody else can read. Labs prove who they are with their node's key, which opens nothing here.
Flower's own places for this are the two functions that are replaced.
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
        raise MissingError(f"{path}: there is no operator's token; bottlegan deploy rotate --operator makes one")
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < 32:
        raise InputError(f"{path}: is too short for a token; bottlegan deploy rotate --operator makes one")
    return token


class AskForToken(NoOpControlAuthnPlugin):
    """Lets nobody give orders to the SuperLink who has not got the token."""

    def __init__(self, token: str) -> None:
        """Take the token."""
        self.token = token.encode()

    def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
        """Return whether the token is there, and whose account that is."""
        given = dict(metadata).get(ACCESS_TOKEN_KEY, "")
        if not hmac.compare_digest(given.encode() if isinstance(given, str) else given, self.token):
            return False, None
        return super().validate_tokens_in_metadata(metadata)


class ShowToken(NoOpCliAuthPlugin):
    """Shows the token with every order."""

    def __init__(self, token: str) -> None:
        """Take the token."""
        self.token = token

    def write_tokens_to_metadata(self, metadata: Metadata) -> Metadata:
        """Return the metadata with the token."""
        return [*metadata, (ACCESS_TOKEN_KEY, self.token)]


def run_superlink(token: Path, words: Sequence[str]) -> None:
    """Be Flower's `flower-superlink` with these arguments, but take orders only from who has the token."""
    plugin = AskForToken(read_token(token))
    # By its name: what its package calls so is the function in it.
    module: Any = import_module("flwr.superlink.cli.flower_superlink")
    module.load_control_authn_plugin = lambda: plugin
    _run(module.flower_superlink, "flower-superlink", words)


def run_flwr(token: Path, words: Sequence[str]) -> None:
    """Be Flower's `flwr` with these arguments, with the token."""
    from flwr.cli.app import app  # noqa: PLC0415 - nothing else needs all of its commands

    plugin = ShowToken(read_token(token))
    flower_cli.load_cli_auth_plugin_from_connection = lambda *_, **__: plugin
    _run(app, "flwr", words)


@dataclass(frozen=True)
class Node:
    """A lab's node as the SuperLink knows it."""

    number: int
    name: str
    key: bytes


class Operator:
    """Says which labs may connect."""

    def __init__(self, address: str, authority: Path, token: Path) -> None:
        """Reach the SuperLink at `address`, whose certificate `authority` has signed."""
        connection = SuperLinkConnection(
            name="consortium", address=address, root_certificates=str(authority.resolve()), insecure=False
        )
        self._address = address
        self._client: Any = flower_cli.init_http_client_from_connection(connection, ShowToken(read_token(token)))

    def nodes(self) -> list[Node]:
        """Return all nodes that may connect."""
        found = self._call("ListNodes", ListNodesRequest()).nodes_info
        return [Node(each.node_id, each.name, each.public_key) for each in found if each.status != GONE]

    def register(self, name: str, public_key: Path) -> bool:
        """Let a node with this key connect, under this name; return False if it could already.

        A second key under the same name is refused: nobody could tell which of them is the lab.
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
        """Let no node of this name connect any more; return how many could."""
        found = [node for node in self.nodes() if node.name == name]
        for node in found:
            self._call("UnregisterNode", UnregisterNodeRequest(node_id=node.number))
        return len(found)

    def _call(self, method: str, request: Any) -> Any:
        try:
            return getattr(self._client, method)(request)
        # Whatever goes wrong between here and there, Flower has many names for it.
        except Exception as error:
            raise FederationError(
                f"the SuperLink at {self._address} did not do {method} ({type(error).__name__}: {error}); "
                "start server/superlink.sh first, and see that operator.token is that of this server"
            ) from None


def _run(command: Callable[[], Any], name: str, words: Sequence[str]) -> None:
    sys.argv = [name, *words]
    command()
