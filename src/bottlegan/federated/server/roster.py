"""The clients of a federation, stored in its folder so that nobody is asked twice."""

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
    """The clients of one federation, and what each still needs."""

    def __init__(self, folder: Path, progress: Progress | None = None) -> None:
        """Load the clients in `folder`, if any."""
        self.folder, self.progress = folder, progress or Silent()
        self.members = read_members(folder)
        self.styles: str | None = ""
        """Digest of the styles that every client should have; empty if none are needed, None if none exist yet."""
        self.left_out: dict[str, str] = {}
        """Clients that could not join, and why. They are asked again after they reconnect or the run is resumed."""

    def wait(self, exchange: Exchange, rounds: RoundsConfig) -> list[str]:
        """Return the connected clients once there are enough, or raise `FederationError` after the deadline."""
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
        """Return the connected clients that have not joined."""
        return [name for name in self._open(present) if name not in self.members.clients]

    def list_behind(self, present: Sequence[str]) -> list[str]:
        """Return the connected clients that have joined but do not have the current styles."""
        members = self.members.clients
        return [name for name in self._open(present) if name in members and members[name].styles != self.styles]

    def list_joined(self, present: Sequence[str]) -> list[str]:
        """Return the connected clients that have joined."""
        return [name for name in self._open(present) if name in self.members.clients]

    def count_examples(self, config: Phase2Config, round_number: int) -> dict[str, int]:
        """Return how many images each ready client trains on; 0 for those that only score."""
        return {
            name: count_examples(config, member.labeled, member.unlabeled, round_number)
            for name, member in self.members.clients.items()
            if member.styles == self.styles
        }

    def put(self, members: Mapping[str, Member]) -> None:
        """Add or update clients."""
        self.members = replace(self.members, clients={**self.members.clients, **members})
        write_members(self.folder, self.members)

    def leave_out(self, name: str, reason: str) -> None:
        """Continue without a client that could not do what it was asked to."""
        self.left_out[name] = reason
        self.progress.event("left out", client=name, reason=reason)

    def _open(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self.left_out]
