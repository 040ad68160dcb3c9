"""A lab's side: reads the server's requests, lets `federated.client` answer, and sends the replies."""

from pathlib import Path
from typing import NamedTuple

from bottlegan.core.errors import FederationError, InputError
from bottlegan.federated.client.client import Client
from bottlegan.federated.folder.bundle import BundleError
from bottlegan.federated.folder.channel import Arrival, Channel
from bottlegan.federated.folder.home import Home
from bottlegan.federated.folder.payload import pack_reply, unpack_request
from bottlegan.federated.protocol.exchange import Absence, Reply


class Answered(NamedTuple):
    """A request that was answered."""

    kind: str
    failure: str | None
    """Why answering failed, if it did."""


def open_channel(home: Home, shared: Path) -> Channel:
    """Return the channel of a lab to its server."""
    if home.config.lab is None:
        raise InputError(f"{home.folder}: is the home of a server; give a lab's")
    servers = home.trusted()
    if not servers:
        raise InputError(f"{home.folder}: trusts no server yet; add its card with: bottlegan exchange trust")
    return Channel(home, next(iter(servers.values())), shared)


def answer_all(channel: Channel, client: Client, *, again: bool = True) -> list[Answered]:
    """Answer all requests that have arrived. If there are none, retry the last failed request, if `again`."""
    failed = channel.folder / "failed.bundle"
    answered = []
    for arrival in channel.arrivals("request"):
        outcome = _answer(client, arrival)
        if outcome.failure is not None:
            channel.keep(arrival, failed)
        channel.send("reply", arrival.envelope.request, outcome.content, answered=arrival)
        channel.mark(failed=outcome.failure is not None)
        answered.append(Answered(outcome.kind, outcome.failure))
    if not answered and again and channel.ledger.failed:
        try:
            arrival = channel.reopen(failed)
        except BundleError:
            channel.mark(failed=False)
            return []
        outcome = _answer(client, arrival)
        if outcome.failure is None:
            channel.send("reply", arrival.envelope.request, outcome.content)
            channel.mark(failed=False)
        answered.append(Answered(outcome.kind, outcome.failure))
    channel.publish()
    return answered


class _Outcome(NamedTuple):
    kind: str
    failure: str | None
    content: bytes


def _answer(client: Client, arrival: Arrival) -> _Outcome:
    """Return the client's answer to a request, as bytes."""
    kind = "request"
    try:
        request = unpack_request(arrival.content)
        kind = request.kind
        reply: Reply | Absence = client.answer(request)
    except FederationError as error:
        # The client's own summary, which is meant for the server.
        reply = Absence(str(error))
    except InputError:
        reply = Absence("the lab cannot read the request")
    return _Outcome(kind, reply.reason if isinstance(reply, Absence) else None, pack_reply(reply))
