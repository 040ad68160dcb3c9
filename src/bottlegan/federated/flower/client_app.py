"""The client as a Flower app: finds the lab's configuration, and lets `federated.client` answer.

A node names its configuration (`--node-config "lab='/path/lab.toml'"`). In a simulation, nodes have only a number, and
stand for the lab with that number.
"""

import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from bottlegan.core.errors import ConfigError, FederationError, InputError, MissingError
from bottlegan.federated.client.client import Client, open_client
from bottlegan.federated.client.holdings import find_labs
from bottlegan.federated.flower.messages import (
    KINDS,
    PARTITION,
    message_type,
    pack_failure,
    pack_partition,
    pack_reply,
    unpack_request,
)
from bottlegan.federated.protocol.exchange import Kind, Stamp, digest_request

LAB = "lab"
LABS = "server.labs"
CACHED = 256
log = logging.getLogger(__name__)


def build_client_app(labs: Sequence[Path] = ()) -> ClientApp:
    """Build the app; `labs` are the configurations of a simulation's nodes, in the order of their partitions."""
    app = ClientApp()
    folders = tuple(labs)

    # One registration per kind, because Flower routes a message by its type.
    for kind in KINDS:

        @app.train(kind)
        def handle(message: Message, context: Context, kind: Kind = kind) -> Message:
            return answer(kind, message, context, folders)

    @app.query("partition")
    def tell_partition(message: Message, context: Context) -> Message:
        number = context.node_config.get(PARTITION, -1)
        return Message(pack_partition(number if isinstance(number, int) else -1), reply_to=message)

    return app


def answer(kind: Kind, message: Message, context: Context, labs: Sequence[Path]) -> Message:
    """Return the client's reply, or the reason why there is none, which reveals nothing about its files."""
    try:
        request = unpack_request(kind, message.content)
        client = open_cached(find_lab(context, labs))
        reply = client.answer(request)
        records = pack_reply(reply, Stamp(client.name, digest_request(request)))
    except FederationError as error:
        # The client has logged what is wrong.
        records = pack_failure(str(error))
    except InputError as error:
        log.error("%s: %s", kind, " ".join(str(error).split()))
        records = pack_failure(explain(error))
    # Flower would send an exception's text to the server, and that may name a patient's file.
    except Exception as error:
        log.exception("a request (%s) of the server could not be answered", message_type(kind))
        records = pack_failure(explain(error))
    return Message(records, reply_to=message)


def explain(error: Exception) -> str:
    """Return what the server may know about an error; the full text, which may name files, stays in the lab's log."""
    match error:
        case MissingError():
            what = "a file or folder that its configuration names is missing"
        case ConfigError():
            what = "its configuration cannot be used"
        case InputError():
            what = "its data, or what it was asked for, cannot be used"
        case _:
            what = f"it ended with {type(error).__name__}"
    return f"{what}; see the client's own log"


def find_lab(context: Context, labs: Sequence[Path]) -> Path:
    """Return the configuration of this node's lab: named by the node, or found by its number in a simulation."""
    named = context.node_config.get(LAB)
    if isinstance(named, str) and named:
        return Path(named)
    number = context.node_config.get(PARTITION)
    folder = context.run_config.get(LABS)
    if not labs and isinstance(folder, str) and folder:
        labs = list(find_labs(Path(folder)).values())
    if isinstance(number, int) and 0 <= number < len(labs):
        return labs[number]
    raise ConfigError(f"this node does not say which lab it is; start it with --node-config \"{LAB}='/path/lab.toml'\"")


@lru_cache(maxsize=CACHED)
def open_cached(path: Path) -> Client:
    """Return the client of a lab, opened once per process, because a simulation's workers serve many requests."""
    return open_client(path)


app = build_client_app()
