"""Clients that are reached through Flower's grid."""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    ) -> None:
        """Take what reaches the clients.

        Args:
            grid: Flower's.
            partitions: Names of a simulation's partitions, whose nodes have no names of their own.
            poll_seconds: How long to pause before looking for replies again.
            in_flight: Messages that may be on their way at once.
        """
        self.grid, self.partitions = grid, partitions
        self.poll_seconds, self.in_flight = poll_seconds, in_flight
        self.nodes: dict[str, int] = {}
        self._partition_names: dict[int, str] = {}
        self._refused: set[int] = set()

    def clients(self) -> list[str]:
        """Return the names of the nodes that are connected now."""
        found = {int(node.node_id): str(node.name) for node in self.grid.get_nodes()}
        if self.partitions:
            found = self._name_partitions(list(found))
        # The number of a node stays the same for as long as its key does, so such a name is stable too.
        names = {number: name if _is_name(name) else f"{UNNAMED}{number}" for number, name in found.items()}
        counts = Counter(names.values())
        # Of several keys under one name, the lab's own is the one that had it when it was alone.
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
        messages = _write_messages(
            {name: each for name, each in requests.items() if name in self.nodes}, self.nodes, deadline
        )
        replies = self._send_and_receive(messages, deadline)
        gone = Absence("it is not connected, or its request could not be sent")
        answers = {name: replies.get(name, gone) for name in requests}
        # Requests are often one and the same for all clients.
        digests = {id(each): digest_request(each) for each in {id(each): each for each in requests.values()}.values()}
        return {
            name: unpack_reply(found.content, Stamp(name, digests[id(requests[name])]))
            if isinstance(found, Message)
            else found
            for name, found in answers.items()
        }

    def _send_and_receive(
        self, messages: Iterable[tuple[str, Message]], deadline: float
    ) -> dict[str, Message | Absence]:
        """Return replies by the names of their clients; as Flower's own, but with our deadline and our pauses."""
        end = time.monotonic() + deadline
        unsent = iter(messages)
        waiting: dict[str, str] = {}
        replies: dict[str, Message | Absence] = {}
        while True:
            batch = list(islice(unsent, self.in_flight - len(waiting)))
            waiting |= self._push(batch)
            if not batch and not waiting:
                return replies
            found = self._pull_all(waiting)
            replies |= found
            waiting = {name: identifier for name, identifier in waiting.items() if name not in found}
            if waiting and time.monotonic() >= end:
                late = [*waiting, *(name for name, _ in unsent)]
                return replies | dict.fromkeys(late, Absence(f"no reply within {deadline:g} s"))
            if waiting:
                time.sleep(self.poll_seconds)

    def _push(self, messages: Sequence[tuple[str, Message]]) -> dict[str, str]:
        """Send messages, and return the identifiers of those that were sent, by the names of their clients."""
        sent = set(self.grid.push_messages([message for _, message in messages])) if messages else set()
        identifiers = {name: message.metadata.message_id for name, message in messages}
        return {name: identifier for name, identifier in identifiers.items() if identifier in sent}

    def _pull_all(self, waiting: Mapping[str, str]) -> dict[str, Message | Absence]:
        """Return the replies that are there, by the names of their clients."""
        if not self.partitions:
            pulled = {name: self._pull(identifier) for name, identifier in waiting.items()}
            return {name: reply for name, reply in pulled.items() if reply is not None}
        # A simulation's replies need not be taken apart, and asking for each costs a third of a short round.
        names = {identifier: name for name, identifier in waiting.items()}
        return {
            names[message.metadata.reply_to_message_id]: _take(message) for message in self.grid.pull_messages(names)
        }

    def _pull(self, identifier: str) -> Message | Absence | None:
        """Return the reply to one message, if it is there.

        One at a time: Flower takes replies apart as it pulls them, and one that it cannot read would cost all others.
        """
        try:
            # A dead node's error comes from the SuperLink: whom it is about, only this identifier tells.
            found = [m for m in self.grid.pull_messages([identifier]) if m.metadata.reply_to_message_id == identifier]
        except Exception as error:
            return Absence(f"its reply cannot be read ({type(error).__name__})")
        return _take(found[0]) if found else None

    def _name_partitions(self, found: Sequence[int]) -> dict[int, str]:
        """Return the nodes of a simulation whose lab is known, asking those for it that have not said yet."""
        unknown = [number for number in found if number not in self._partition_names]
        messages = ((str(number), Message(RecordDict(), number, PARTITION_TYPE)) for number in unknown)
        for number, reply in self._send_and_receive(messages, PARTITION_DEADLINE).items():
            if isinstance(reply, Absence):
                # Asked again, it would fail again: its worker cannot run the app.
                raise FederationError(f"a node of the simulation cannot say which lab it is: {reply.reason}")
            partition = unpack_partition(reply.content)
            if partition is not None and partition < len(self.partitions):
                self._partition_names[int(number)] = self.partitions[partition]
        return {number: self._partition_names[number] for number in found if number in self._partition_names}


def _write_messages(
    requests: Mapping[str, Request], nodes: Mapping[str, int], deadline: float
) -> Iterator[tuple[str, Message]]:
    """Yield a message for each client, made when it is about to be sent: many large ones at once would fill memory."""
    last: tuple[Request, RecordDict] | None = None
    for name, request in requests.items():
        # Requests are often one and the same for all clients: pack it once.
        if last is None or last[0] is not request:
            last = request, pack_request(request)
        yield name, Message(last[1], nodes[name], message_type(request.kind), ttl=deadline)


def _take(reply: Message) -> Message | Absence:
    """Return a reply, or why there is none if it is an error."""
    if reply.has_error():
        return Absence(printable(reply.error.reason or f"error {reply.error.code}"))
    return reply


def _is_name(name: str) -> bool:
    """Whether a node can be called what it was registered as, and not be taken for one without a name."""
    if name.startswith(UNNAMED):
        return False
    try:
        check_name(name)
    except InputError:
        return False
    return True
