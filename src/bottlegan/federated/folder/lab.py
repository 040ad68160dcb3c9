"""A lab's side: takes the server's requests, lets `federated.client` answer, and sends what it says."""

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
    """Why it could not be, if so."""


def open_channel(home: Home, shared: Path) -> Channel:
    """Return the channel of a lab to its server."""
    if home.config.lab is None:
        raise InputError(f"{home.folder}: is the home of a server; give a lab's")
    known = home.trusted()
    if not known:
        raise InputError(f"{home.folder}: trusts no server yet; take in its card: bottlegan exchange trust")
    return Channel(home, next(iter(known.values())), shared)


def answer_all(channel: Channel, client: Client, *, again: bool = True) -> list[Answered]:
    """Answer all requests that have arrived; if there are none, try `again` what could not be answered last time."""
    failed = channel.folder / "failed.bundle"
    answered = []
    for arrival in channel.arrivals("request"):
        found = _answer(client, arrival)
        if found.failure is not None:
            channel.keep(arrival, failed)
        channel.send("reply", arrival.envelope.request, found.content, answered=arrival)
        channel.mark(failed=found.failure is not None)
        answered.append(Answered(found.kind, found.failure))
    if not answered and again and channel.ledger.failed:
        try:
            arrival = channel.reopen(failed)
        except BundleError:
            channel.mark(failed=False)
            return []
        found = _answer(client, arrival)
        if found.failure is None:
            channel.send("reply", arrival.envelope.request, found.content)
            channel.mark(failed=False)
        answered.append(Answered(found.kind, found.failure))
    channel.publish()
    return answered


class _Found(NamedTuple):
    kind: str
    failure: str | None
    content: bytes


def _answer(client: Client, arrival: Arrival) -> _Found:
    """Return what the client says to a request, as bytes."""
    kind = "request"
    try:
        request = unpack_request(arrival.content)
        kind = request.kind
        reply: Reply | Absence = client.answer(request)
    except FederationError as error:
        # The client's own summary, which is made for the server.
        reply = Absence(str(error))
    except InputError:
        reply = Absence("the request cannot be read there")
    return _Found(kind, reply.reason if isinstance(reply, Absence) else None, pack_reply(reply))
