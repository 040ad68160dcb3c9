"""Who takes part in a federation: the document that `clients.json` holds."""

from pathlib import Path

from bottlegan.core.config import document
from bottlegan.core.state import from_stamped_json, read_generation, to_stamped_json, write_generation
from bottlegan.federated.server.folder import MEMBERS


@document
class Member:
    """A client that has joined."""

    labeled: int
    unlabeled: int
    test: int
    classes: tuple[int, ...] = ()
    """How many labeled pixels or patches it has of each class."""
    tested: tuple[int, ...] = ()
    """How many pixels or patches of each class it tests on: what every tally of it must count."""
    verdict: str = ""
    """On its style, once it has uploaded it."""
    styles: str = ""
    """Digest of the styles that it was given last."""


@document
class Members:
    """All clients that have joined, and those that were removed and are not asked any more."""

    clients: dict[str, Member]
    removed: tuple[str, ...] = ()


def read_members(folder: Path) -> Members:
    """Return the clients of the federation in `folder`."""
    path = folder / MEMBERS
    kept = read_generation(path, "restore one of them from a backup, or begin anew in another folder")
    return Members(clients={}) if kept is None else from_stamped_json(Members, kept.content, path)


def write_members(folder: Path, members: Members) -> None:
    """Keep the clients of the federation in `folder`."""
    write_generation(folder / MEMBERS, to_stamped_json(members))
