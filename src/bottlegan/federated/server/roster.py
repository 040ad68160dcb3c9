"""Who takes part in a federation: kept in its folder, so that nobody is asked twice."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bottlegan.core.errors import FederationError
from bottlegan.core.progress import Progress, Silent
from bottlegan.federated.protocol.exchange import Exchange
from bottlegan.federated.protocol.phase2 import Phase2Config, count_examples
from bottlegan.federated.server.config import RoundsConfig
from bottlegan.federated.server.members import Member, read_members, write_members

JOIN_POLL_SECONDS = 1.0


class Roster:
    """The clients of one federation, and whose turn it is."""

    def __init__(self, folder: Path, progress: Progress | None = None) -> None:
        """Go on with the clients in `folder`, if there are some."""
        self.folder, self.progress = folder, progress or Silent()
        self.members = read_members(folder)
        self.styles: str | None = ""
        """Digest of the styles that everybody should have; None if there are none, though there should be."""
        self.left_out: dict[str, str] = {}
        """Clients that could not join, and why. They are asked again once they have been away, or by a resumed run."""

    def wait(self, exchange: Exchange, rounds: RoundsConfig) -> list[str]:
        """Return the clients that are there, as soon as they are enough; not waiting for ever."""
        end = time.monotonic() + rounds.deadline
        while True:
            present = sorted(name for name in exchange.clients() if name not in self.members.removed)
            if len(present) >= rounds.least:
                self.left_out = {name: reason for name, reason in self.left_out.items() if name in present}
                return present
            if time.monotonic() >= end:
                raise FederationError(
                    f"{len(present)} clients are connected after {rounds.deadline:g} s, {rounds.least} are needed; "
                    "start the others, then resume"
                )
            time.sleep(min(JOIN_POLL_SECONDS, max(0.0, end - time.monotonic())))

    def list_strangers(self, present: Sequence[str]) -> list[str]:
        """Return who is there and has not joined."""
        return [name for name in self._open(present) if name not in self.members.clients]

    def list_behind(self, present: Sequence[str]) -> list[str]:
        """Return who is there and has joined, but has not got the styles that everybody should have."""
        known = self.members.clients
        return [name for name in self._open(present) if name in known and known[name].styles != self.styles]

    def list_joined(self, present: Sequence[str]) -> list[str]:
        """Return who is there and has joined."""
        return [name for name in self._open(present) if name in self.members.clients]

    def count_examples(self, config: Phase2Config, round_number: int) -> dict[str, int]:
        """Return how many images each client trains on that is ready for a round, 0 for those that only score."""
        return {
            name: count_examples(config, each.labeled, each.unlabeled, round_number)
            for name, each in self.members.clients.items()
            if each.styles == self.styles
        }

    def put(self, members: Mapping[str, Member]) -> None:
        """Take in clients, or what is new of them."""
        self.members = replace(self.members, clients={**self.members.clients, **members})
        write_members(self.folder, self.members)

    def leave_out(self, name: str, reason: str) -> None:
        """Go on without a client that could not do what it was asked for."""
        self.left_out[name] = reason
        self.progress.event("left out", client=name, reason=reason)

    def _open(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self.left_out]
