"""The clients of a federation: the content of `clients.json`."""

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
    """Number of labeled pixels or patches of each class."""
    tested: tuple[int, ...] = ()
    """Number of test pixels or patches of each class, which each of its tallies must add up to."""
    verdict: str = ""
    """Verdict on its style, once uploaded."""
    styles: str = ""
    """Digest of the styles that it received last."""


@document
class Members:
    """All clients that have joined, and those that were removed and are never asked again."""

    clients: dict[str, Member]
    removed: tuple[str, ...] = ()


def read_members(folder: Path) -> Members:
    """Read the clients of the federation in `folder`."""
    path = folder / MEMBERS
    kept = read_generation(path, "restore one of them from a backup, or start over in another folder")
    return Members(clients={}) if kept is None else from_stamped_json(Members, kept.content, path)


def write_members(folder: Path, members: Members) -> None:
    """Write the clients of the federation in `folder`."""
    write_generation(folder / MEMBERS, to_stamped_json(members))
