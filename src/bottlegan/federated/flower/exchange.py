"""Clients that are reached through Flower's grid."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from bottlegan.errors import FederationError, InputError
from bottlegan.federated.flower.messages import (
    PARTITION_TYPE,
    message_type,
    pack_request,
    unpack_partition,
    unpack_reply,
)
from bottlegan.federated.protocol.exchange import Absence, Reply, Request
from bottlegan.federated.protocol.validation import printable
from bottlegan.models.document import check_name

UNNAMED = "node-"
POLL_SECONDS = 1.0
PARTITION_DEADLINE = 300.0


class FlowerExchange:
    """Clients that are reached through Flower's grid."""

    def __init__(self, grid: Grid, partitions: Sequence[str] = (), poll_seconds: float = POLL_SECONDS) -> None:
        """Take the grid, and the names of a simulation's partitions, whose nodes have no names of their own."""
        self.grid = grid
        self.partitions = partitions
        self.poll_seconds = poll_seconds
        self.nodes: dict[str, int] = {}
        self._partition_names: dict[int, str] = {}

    def clients(self) -> list[str]:
        """Return the names of the nodes that are connected now."""
        found = {int(node.node_id): str(node.name) for node in self.grid.get_nodes()}
        if self.partitions:
            found = self._name_partitions(list(found))
        counts = Counter(found.values())
        # The number of a node stays the same for as long as its key does, so such a name is stable too.
        self.nodes = {
            name if counts[name] == 1 and _is_name(name) else f"{UNNAMED}{number}": number
            for number, name in found.items()
        }
        return sorted(self.nodes)

    def most(self) -> int | None:
        """Return how many nodes a simulation has; in a deployment, more may be registered at any time."""
        return len(self.partitions) or None

    def wait(self, count: int, seconds: float) -> list[str]:
        """Return the clients as soon as there are at least `count`, or raise `FederationError` after `seconds`."""
        end = time.monotonic() + seconds
        while len(found := self.clients()) < count:
            if time.monotonic() >= end:
                there = ", ".join(found) or "none"
                raise FederationError(
                    f"{len(found)} clients are connected after {seconds:g} s ({there}), {count} are needed; "
                    "start the others' nodes, or wait for fewer"
                )
            time.sleep(min(self.poll_seconds, max(end - time.monotonic(), 0)))
        return found

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        """Send each client its request and collect what comes back within `deadline` seconds."""
        if not requests.keys() <= self.nodes.keys():
            self.clients()
        # Requests are often one and the same for all clients: pack it once.
        packed = {id(request): pack_request(request) for request in requests.values()}
        messages = {
            name: Message(packed[id(request)], self.nodes[name], message_type(request.kind), ttl=deadline)
            for name, request in requests.items()
            if name in self.nodes
        }
        replies = self._send_and_receive(messages, deadline)
        gone = Absence("it is not connected, or its request could not be sent")
        answers = {name: replies.get(name, gone) for name in requests}
        return {
            name: unpack_reply(found.content) if isinstance(found, Message) else found
            for name, found in answers.items()
        }

    def _send_and_receive(self, messages: Mapping[str, Message], deadline: float) -> dict[str, Message | Absence]:
        """Return replies by the names of their clients; as Flower's own, but with our deadline and our pauses."""
        end = time.monotonic() + deadline
        sent = {identifier for identifier in self.grid.push_messages(list(messages.values())) if identifier}
        waiting = {name: message.metadata.message_id for name, message in messages.items()}
        waiting = {name: identifier for name, identifier in waiting.items() if identifier in sent}
        replies: dict[str, Message | Absence] = {}
        while waiting:
            for name, identifier in list(waiting.items()):
                if (reply := self._pull(identifier)) is not None:
                    replies[name] = reply
                    del waiting[name]
            if waiting and time.monotonic() >= end:
                return replies | dict.fromkeys(waiting, Absence(f"no reply within {deadline:g} s"))
            if waiting:
                time.sleep(self.poll_seconds)
        return replies

    def _pull(self, identifier: str) -> Message | Absence | None:
        """Return the reply to one message, if it is there.

        One at a time: Flower takes replies apart as it pulls them, and one that it cannot read would cost all others.
        """
        try:
            # A dead node's error comes from the SuperLink: whom it is about, only this identifier tells.
            found = [m for m in self.grid.pull_messages([identifier]) if m.metadata.reply_to_message_id == identifier]
        except Exception as error:
            return Absence(f"its reply cannot be read ({type(error).__name__})")
        if found and found[0].has_error():
            return Absence(printable(found[0].error.reason or f"error {found[0].error.code}"))
        return found[0] if found else None

    def _name_partitions(self, found: Sequence[int]) -> dict[int, str]:
        """Return the nodes of a simulation whose lab is known, asking those for it that have not said yet."""
        unknown = [number for number in found if number not in self._partition_names]
        messages = {str(number): Message(RecordDict(), number, PARTITION_TYPE) for number in unknown}
        for number, reply in self._send_and_receive(messages, PARTITION_DEADLINE).items():
            if isinstance(reply, Absence):
                # Asked again, it would fail again: its worker cannot run the app.
                raise FederationError(f"a node of the simulation cannot say which lab it is: {reply.reason}")
            partition = unpack_partition(reply.content)
            if partition is not None and partition < len(self.partitions):
                self._partition_names[int(number)] = self.partitions[partition]
        return {number: self._partition_names[number] for number in found if number in self._partition_names}


def _is_name(name: str) -> bool:
    """Whether a node can be called what it was registered as, and not be taken for one without a name."""
    if name.startswith(UNNAMED):
        return False
    try:
        check_name(name)
    except InputError:
        return False
    return True
