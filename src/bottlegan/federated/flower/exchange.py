"""Clients that are reached through Flower's grid."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from bottlegan.core.errors import FederationError, InputError
from bottlegan.federated.flower.messages import (
    PARTITION_TYPE,
    message_type,
    pack_request,
    unpack_partition,
    unpack_reply,
)
from bottlegan.federated.protocol.exchange import Absence, Reply, Request, Stamp, digest_request
from bottlegan.federated.protocol.validation import printable
from bottlegan.models.document import check_name

UNNAMED = "node-"
REPLY_POLL_SECONDS = 0.2
MOST_IN_FLIGHT = 10_000
PARTITION_DEADLINE = 300.0
log = logging.getLogger(__name__)


class FlowerExchange:
    """Clients that are reached through Flower's grid."""

    def __init__(
        self,
        grid: Grid,
        partitions: Sequence[str] = (),
        poll_seconds: float = REPLY_POLL_SECONDS,
        in_flight: int = MOST_IN_FLIGHT,
        *,
        pause: Callable[[float], object] = time.sleep,
        sent: Callable[[int], object] = int,
    ) -> None:
        """Reach clients through a grid.

        Args:
            grid: Flower's grid.
            partitions: Names of a simulation's partitions, because its nodes have no names of their own.
            poll_seconds: Pause between two looks for replies.
            in_flight: Largest number of messages on their way at once.
            pause: Waits for replies, but not longer than this many seconds.
            sent: Receives the number of each node that a message was sent to.
        """
        self.grid, self.partitions = grid, partitions
        self.poll_seconds, self.in_flight = poll_seconds, in_flight
        self._pause, self._sent = pause, sent
        self.nodes: dict[str, int] = {}
        self._partition_names: dict[int, str] = {}
        self._refused: set[int] = set()

    def clients(self) -> list[str]:
        """Return the names of the nodes that are connected now."""
        nodes = {int(node.node_id): str(node.name) for node in self.grid.get_nodes()}
        if self.partitions:
            nodes = self._name_partitions(list(nodes))
        # A node's number stays the same as long as its key does, so this name is stable, too.
        names = {number: name if _is_name(name) else f"{UNNAMED}{number}" for number, name in nodes.items()}
        counts = Counter(names.values())
        # If several keys use one name, the lab's own is the one that used it first.
        kept = {number for number, name in names.items() if counts[name] == 1 or self.nodes.get(name) == number}
        for number in names.keys() - kept - self._refused:
            log.warning("node %d is refused: another node is called %s, too", number, names[number])
            self._refused.add(number)
        self.nodes = {names[number]: number for number in sorted(kept)}
        return sorted(self.nodes)

    def most(self) -> int | None:
        """Return how many nodes a simulation has; in a deployment, more may be registered at any time."""
        return len(self.partitions) or None

    def wait(self, count: int, seconds: float) -> list[str]:
        """Return the clients once there are at least `count`, or raise `FederationError` after `seconds`."""
        end = time.monotonic() + seconds
        while len(clients := self.clients()) < count:
            if time.monotonic() >= end:
                connected = ", ".join(clients) or "none"
                raise FederationError(
                    f"{len(clients)} clients are connected after {seconds:g} s ({connected}), {count} are needed; "
                    "start the others' nodes, or wait for fewer"
                )
            time.sleep(min(self.poll_seconds, max(end - time.monotonic(), 0)))
        return clients

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        """Send each client its request and collect what comes back within `deadline` seconds."""
        if not requests.keys() <= self.nodes.keys():
            self.clients()
        messages = _write_messages(
            {name: request for name, request in requests.items() if name in self.nodes}, self.nodes, deadline
        )
        replies = self._send_and_receive(messages, deadline)
        gone = Absence("it is not connected, or its request could not be sent")
        answers = {name: replies.get(name, gone) for name in requests}
        # Often all clients get the same request.
        distinct = {id(request): request for request in requests.values()}
        digests = {key: digest_request(request) for key, request in distinct.items()}
        return {
            name: unpack_reply(answer.content, Stamp(name, digests[id(requests[name])]))
            if isinstance(answer, Message)
            else answer
            for name, answer in answers.items()
        }

    def _send_and_receive(
        self, messages: Iterable[tuple[str, Message]], deadline: float
    ) -> dict[str, Message | Absence]:
        """Return replies by client; like Flower's own function, but with our deadline and pauses."""
        end = time.monotonic() + deadline
        unsent = iter(messages)
        waiting: dict[str, str] = {}
        replies: dict[str, Message | Absence] = {}
        while True:
            batch = list(islice(unsent, self.in_flight - len(waiting)))
            waiting |= self._push(batch)
            if not batch and not waiting:
                return replies
            arrived = self._pull_all(waiting)
            replies |= arrived
            waiting = {name: identifier for name, identifier in waiting.items() if name not in arrived}
            if waiting and time.monotonic() >= end:
                late = [*waiting, *(name for name, _ in unsent)]
                return replies | dict.fromkeys(late, Absence(f"no reply within {deadline:g} s"))
            if waiting:
                self._pause(self.poll_seconds)

    def _push(self, messages: Sequence[tuple[str, Message]]) -> dict[str, str]:
        """Send messages, and return the identifiers of those that were sent, by client."""
        sent = set(self.grid.push_messages([message for _, message in messages])) if messages else set()
        for _, message in messages:
            self._sent(message.metadata.dst_node_id)
        identifiers = {name: message.metadata.message_id for name, message in messages}
        return {name: identifier for name, identifier in identifiers.items() if identifier in sent}

    def _pull_all(self, waiting: Mapping[str, str]) -> dict[str, Message | Absence]:
        """Return the replies that have arrived, by client."""
        if not self.partitions:
            pulled = {name: self._pull(identifier) for name, identifier in waiting.items()}
            return {name: reply for name, reply in pulled.items() if reply is not None}
        # A simulation's replies can be pulled together; pulling each alone costs a third of a short round.
        names = {identifier: name for name, identifier in waiting.items()}
        return {
            names[message.metadata.reply_to_message_id]: _take(message) for message in self.grid.pull_messages(names)
        }

    def _pull(self, identifier: str) -> Message | Absence | None:
        """Return the reply to one message, if it has arrived.

        Replies are pulled one at a time. Flower parses them as it pulls, so one unreadable reply would cost the others.
        """
        try:
            # A dead node's error comes from the SuperLink, and only this identifier tells which node it is about.
            replies = [m for m in self.grid.pull_messages([identifier]) if m.metadata.reply_to_message_id == identifier]
        except Exception as error:
            return Absence(f"its reply cannot be read ({type(error).__name__})")
        return _take(replies[0]) if replies else None

    def _name_partitions(self, nodes: Sequence[int]) -> dict[int, str]:
        """Return the lab's name for each node of a simulation, asking nodes whose lab is not known yet."""
        unknown = [number for number in nodes if number not in self._partition_names]
        messages = ((str(number), Message(RecordDict(), number, PARTITION_TYPE)) for number in unknown)
        for number, reply in self._send_and_receive(messages, PARTITION_DEADLINE).items():
            if isinstance(reply, Absence):
                # It would fail again, because its worker cannot run the app.
                raise FederationError(f"a node of the simulation cannot say which lab it is: {reply.reason}")
            partition = unpack_partition(reply.content)
            if partition is not None and partition < len(self.partitions):
                self._partition_names[int(number)] = self.partitions[partition]
        return {number: self._partition_names[number] for number in nodes if number in self._partition_names}


def _write_messages(
    requests: Mapping[str, Request], nodes: Mapping[str, int], deadline: float
) -> Iterator[tuple[str, Message]]:
    """Yield a message for each client, built just before it is sent, because many large ones would fill the memory."""
    last: tuple[Request, RecordDict] | None = None
    for name, request in requests.items():
        # Often all clients get the same request: pack it once.
        if last is None or last[0] is not request:
            last = request, pack_request(request)
        yield name, Message(last[1], nodes[name], message_type(request.kind), ttl=deadline)


def _take(reply: Message) -> Message | Absence:
    """Return a reply, or an absence if it is an error."""
    if reply.has_error():
        return Absence(printable(reply.error.reason or f"error {reply.error.code}"))
    return reply


def _is_name(name: str) -> bool:
    """Return whether a node's registered name is valid and not one that we give to nodes without a name."""
    if name.startswith(UNNAMED):
        return False
    try:
        check_name(name)
    except InputError:
        return False
    return True
