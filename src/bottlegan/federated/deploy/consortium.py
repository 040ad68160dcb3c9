"""Everything that a consortium needs: certificates, keys, commands, an app, and a page for each hospital's IT."""

import ipaddress
import re
import shutil
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w

from bottlegan import __version__
from bottlegan.core.config import to_values
from bottlegan.core.errors import InputError
from bottlegan.core.files import keeping_private, make_folder, write_text
from bottlegan.federated.deploy.certificates import make_authority, make_server, write_authority, write_node_key
from bottlegan.federated.deploy.keys import PORT, record, write_token
from bottlegan.federated.deploy.render import render
from bottlegan.federated.flower.server_app import ServerConfig
from bottlegan.federated.protocol.names import check_lab
from bottlegan.federated.server.config import FederationConfig, check_enough_labs, to_tables
from bottlegan.federated.server.folder import OWN_PRIOR
from bottlegan.imaging.files import MASK_ENDING
from bottlegan.models.weights import read_weights

UNSAFE = frozenset('"$\\;{}\n')
"""Characters that nginx interprets even inside quotes."""
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


def deploy(folder: Path, host: str, labs: Sequence[str], config: FederationConfig, prior: Path | None = None) -> None:
    """Write the files for the server and each lab to `folder`, which must be empty or not exist yet.

    With a `prior`, labs receive that one and fit their styles to it. Only the owner can read the files.
    """
    check_host(host)
    check_labs(labs)
    check_enough_labs(config, len(labs))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: exists and is not empty, and its keys may be in use; choose another folder")
    if prior is not None:
        read_weights(prior)  # refuse an invalid model here, not in every lab
    if odd := UNSAFE & set(str(folder.resolve())):
        raise InputError(f"{folder}: a path with {' '.join(sorted(odd))!r} cannot be used; choose another folder")
    with keeping_private():
        _write(folder, host, labs, config, prior)


def _write(folder: Path, host: str, labs: Sequence[str], config: FederationConfig, prior: Path | None) -> None:
    server = folder / "server"
    make_folder(server / "keys")
    write_token(server)
    record(server, "begun", host=host, labs=list(labs))
    authority = make_authority(host)
    write_authority(authority, server / "ca.crt", server / "ca.key")
    own = make_server(host, authority)
    write_authority(own, server / "server.crt", server / "server.key")
    values = {
        "host": host,
        "address": f"[{host}]" if ":" in host else host,
        "port": PORT,
        "labs": labs,
        "folder": server.resolve(),
        "mask": MASK_ENDING,
        "expires": own.certificate.not_valid_after_utc.date(),
    }
    for name in ("superlink.sh", "flwr.sh", "register.sh", "run.sh", "nginx.conf"):
        render(name, server / name, values)
    if prior is not None:
        shutil.copyfile(prior, server / OWN_PRIOR)
    write_app(server / "app", config, ServerConfig(clients=len(labs), prior=OWN_PRIOR if prior else ""))
    for lab in labs:
        own_folder = folder / "labs" / lab
        make_folder(own_folder)
        write_node_key(own_folder / "node.key", own_folder / "node.key.pub", server / "keys" / f"{lab}.pub")
        (own_folder / "ca.crt").write_bytes((server / "ca.crt").read_bytes())
        render("supernode.sh", own_folder / "start.sh", values)
        render("lab.toml", own_folder / "lab.toml", values)
        render("it.md", own_folder / "README.md", values | {"lab": lab})
    render("README.md", folder / "README.md", values)


def write_app(folder: Path, config: FederationConfig, server: ServerConfig) -> None:
    """Write the Flower app: the settings, and references to the apps in this package."""
    make_folder(folder)
    write_text(folder / "pyproject.toml", tomli_w.dumps(describe_app(config, server)))
    write_text(folder / "README.md", (files("bottlegan.federated.deploy") / "templates" / "app.md").read_text("utf-8"))


def describe_app(config: FederationConfig, server: ServerConfig) -> dict[str, Any]:
    """Return the content of the Flower app's pyproject.toml; Flower flattens the configuration's tables itself."""
    components = {
        "serverapp": "bottlegan.federated.flower.server_app:app",
        "clientapp": "bottlegan.federated.flower.client_app:app",
    }
    return {
        "project": {
            "name": "bottlegan-federation",
            "version": __version__,
            "description": "A federation of labs that train one network, and share no pixel",
            "license": "Apache-2.0",
            "dependencies": [f"bottlegan[federated]=={__version__}"],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "bottlegan",
                    "components": components,
                    "config": to_tables(config) | {"server": to_values(server)},
                }
            }
        },
    }


def check_host(host: str) -> None:
    """Refuse a host that is neither an IP address nor a host name."""
    try:
        # The scope of an IPv6 address, after %, may be any text, and is valid on one machine only.
        ipaddress.ip_address("no address" if "%" in host else host)
    except ValueError:
        if len(host) > 253 or not all(LABEL.fullmatch(part) for part in host.split(".")):
            raise InputError(
                f"{host[:80]!r} is neither a host name nor an IP address; give the address that labs connect to, "
                "without https:// and without a port"
            ) from None


def check_labs(labs: Sequence[str]) -> None:
    """Refuse names that cannot be a folder or a word of a command."""
    for lab in labs:
        check_lab(lab)
    if len({lab.lower() for lab in labs}) < len(labs):
        raise InputError("two labs have the same name; upper and lower case do not count")
