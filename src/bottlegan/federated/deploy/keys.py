"""Keys of an existing federation: registers labs, replaces keys, and revokes those of labs that leave."""

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.files import keeping_private, make_folder, replacing
from bottlegan.core.progress import EventLog, Json
from bottlegan.federated.deploy.certificates import (
    make_server,
    read_authority,
    read_host,
    write_authority,
    write_node_key,
)
from bottlegan.federated.protocol.names import check_lab

if TYPE_CHECKING:
    from bottlegan.federated.flower.operator import Operator

AUDIT, TOKEN = "audit.jsonl", "operator.token"
PORT = 9092
"""Port of the SuperLink on the loopback of its own machine."""


def find_server(folder: Path) -> Path:
    """Return the server's folder below `folder`, which `deploy init` has written."""
    if not (folder / "server" / "ca.crt").is_file():
        raise MissingError(f"{folder}: was not written by `bottlegan deploy init`; give the folder that was")
    return folder / "server"


def call_operator(server: Path) -> "Operator":
    """Connect to the SuperLink on this machine as its operator."""
    from bottlegan.federated.flower.operator import Operator  # noqa: PLC0415 - brings all of Flower's command line

    port = os.environ.get("SUPERLINK_PORT", str(PORT))
    return Operator(f"127.0.0.1:{port}", server / "ca.crt", server / TOKEN)


def write_token(server: Path) -> None:
    """Write a new operator's token."""
    with replacing(server / TOKEN, private=True) as temporary:
        temporary.write_text(f"{secrets.token_urlsafe(32)}\n", encoding="utf-8")


def register(server: Path, labs: list[str], operator: "Operator") -> dict[str, bool]:
    """Register labs with their keys in `server`/keys; return which of them are new."""
    for lab in labs:
        check_lab(lab)
        if not _key(server, lab).is_file():
            raise MissingError(f"{_key(server, lab)}: there is no such key; put the lab's public key there")
    done = {}
    for lab in labs:
        done[lab] = operator.register(lab, _key(server, lab))
        record(server, "registered", lab=lab)
    return done


def revoke(server: Path, lab: str, operator: "Operator") -> int:
    """Unregister a lab, and put its public key aside; return the number of its nodes that were registered."""
    check_lab(lab)
    count = operator.unregister(lab)
    if not count and not _key(server, lab).is_file():
        raise InputError(f"{server}: knows no lab called {lab}; check the name")
    with keeping_private():
        if _key(server, lab).is_file():
            make_folder(server / "keys" / "revoked")
            _key(server, lab).replace(server / "keys" / "revoked" / f"{lab}.{secrets.token_hex(4)}.pub")
        record(server, "revoked", lab=lab, nodes=count)
    return count


def rotate_lab(folder: Path, lab: str, operator: "Operator", public_key: Path | None = None) -> None:
    """Replace a lab's key by a public key that the lab has sent, or by a new key pair in its folder."""
    server = find_server(folder)
    content = None
    if public_key is not None:
        if not public_key.is_file():
            raise MissingError(f"{public_key}: there is no such file; give the public key that the lab sent you")
        content = public_key.read_bytes()
    elif not (folder / "labs" / lab).is_dir():
        raise InputError(f"{folder}: has no folder for a new key of {lab}; give a public key from the lab with --key")
    revoke(server, lab, operator)
    with keeping_private():
        if content is not None:
            with replacing(_key(server, lab)) as temporary:
                temporary.write_bytes(content)
        else:
            own = folder / "labs" / lab
            (own / "node.key").unlink(missing_ok=True)
            write_node_key(own / "node.key", own / "node.key.pub", _key(server, lab))
        register(server, [lab], operator)


def rotate_server(folder: Path) -> None:
    """Replace the server's key and certificate. Labs need nothing new, because the same authority signs it."""
    server = find_server(folder)
    if not (server / "ca.key").is_file():
        raise MissingError(f"{server / 'ca.key'}: is missing, but needed to sign a certificate; put it back first")
    authority = read_authority(server / "ca.crt", server / "ca.key")
    with keeping_private():
        new = make_server(read_host(server / "server.crt"), authority)
        write_authority(new, server / "server.crt.new", server / "server.key.new")
        for name in ("server.key", "server.crt"):
            (server / f"{name}.new").replace(server / name)
        record(server, "new certificate", until=str(new.certificate.not_valid_after_utc.date()))


def rotate_operator(folder: Path) -> None:
    """Replace the operator's token. The SuperLink must be restarted to use it."""
    server = find_server(folder)
    with keeping_private():
        write_token(server)
        record(server, "new token")


def record(server: Path, kind: str, **fields: Json) -> None:
    """Append an event to the server's log of keys."""
    with keeping_private(), EventLog(server / AUDIT) as log:
        log.event(kind, **fields)


def _key(server: Path, lab: str) -> Path:
    return server / "keys" / f"{lab}.pub"
