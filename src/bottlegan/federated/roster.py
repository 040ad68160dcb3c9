"""Who takes part in a federation, and phase 1 on the server: whose style is known, and who has got all of them.

A client that comes later is asked for its style once, without asking the others again; one that is removed leaves
neither its upload nor its style behind.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from bottlegan.config import document, load, to_json, to_values
from bottlegan.errors import FederationError, InputError
from bottlegan.federated.client import LABELED, TEST, UNLABELED, VERDICT, VERDICTS
from bottlegan.federated.exchange import Absence, Exchange, Reply, Request
from bottlegan.federated.phase1 import UploadStore, assemble, expected_shapes
from bottlegan.federated.phase2 import Phase2Config, count_examples
from bottlegan.federated.validation import find_bad_number, find_fault
from bottlegan.files import write_text
from bottlegan.imaging.files import Levels
from bottlegan.models.document import PRIOR, check_name
from bottlegan.models.files import save_model
from bottlegan.models.weights import read_document
from bottlegan.onboarding.verdict import Verdict
from bottlegan.progress import Progress, Silent

if TYPE_CHECKING:
    from bottlegan.federated.federation import FederationConfig

POLL_SECONDS = 1.0
MEMBERS, STYLES, UPLOADS = "clients.json", "styles.safetensors", "uploads"
COUNTS = frozenset((LABELED, UNLABELED, TEST))


@document
class Member:
    """A client that has joined."""

    labeled: int
    unlabeled: int
    test: int
    styles: str = ""
    """Digest of the styles that it was given last."""

    def examples(self, config: Phase2Config, round_number: int) -> int:
        """Return how many images it trains on in a round."""
        return count_examples(config, self.labeled, self.unlabeled, round_number)


@document
class Members:
    """All clients that have joined, and those that were removed and are not asked any more."""

    clients: dict[str, Member]
    removed: tuple[str, ...] = ()


class Roster:
    """The clients of one federation, kept in its folder."""

    def __init__(
        self,
        exchange: Exchange,
        config: "FederationConfig",
        folder: Path,
        reference_set: Sequence[Levels] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Go on with the clients in `folder`, if there are some."""
        self.exchange, self.config, self.folder = exchange, config, folder
        self.reference_set, self.progress = reference_set, progress or Silent()
        self.members = read_members(folder)
        self.uploads = UploadStore(folder / UPLOADS)
        self.left_out: dict[str, str] = {}
        """Clients that could not join, and why. They are asked again once they have been away, or by a resumed run."""

    def update(self, round_number: int) -> dict[str, int]:
        """Take in who is new, and return how many images each client trains on that can take part in a round."""
        present = self.wait()
        self.left_out = {name: reason for name, reason in self.left_out.items() if name in present}
        self.join([name for name in present if name not in self.members.clients])
        digest: str | None = ""
        if self.config.phase2.mode != "plain":
            joined = [name for name in present if name in self.members.clients]
            self.collect([name for name in joined if name not in self.uploads.names()])
            digest = self.assemble()
            known = self.uploads.names()
            self.deliver([name for name in joined if name in known], digest)
        members = self.members.clients.items()
        ready = {
            name: each.examples(self.config.phase2, round_number) for name, each in members if each.styles == digest
        }
        if sum(ready.get(name, 0) > 0 for name in present) < self.config.rounds.least:
            why = "; ".join(f"{name}: {reason}" for name, reason in list(self.left_out.items())[:4])
            usual = "the others have no labels, which they need unless fixmatch has begun"
            raise FederationError(
                f"fewer than {self.config.rounds.least} of {len(present)} clients can train "
                f"({why or usual}); see to them, then resume"
            )
        return ready

    def wait(self) -> list[str]:
        """Return the clients that are there, as soon as they are enough; not waiting for ever."""
        wanted, deadline = self.config.rounds.least, self.config.rounds.deadline
        end = time.monotonic() + deadline
        while True:
            present = [name for name in self.exchange.clients() if name not in self.members.removed]
            if len(present) >= wanted:
                return sorted(present)
            if time.monotonic() >= end:
                raise FederationError(
                    f"{len(present)} clients are connected after {deadline:g} s, {wanted} are needed; "
                    "start the others, then resume"
                )
            time.sleep(min(POLL_SECONDS, max(0.0, end - time.monotonic())))

    def join(self, names: Sequence[str]) -> None:
        """Ask clients how many images they have."""
        asked = {name: Request("join", settings={"client": name}) for name in self._open(names)}
        for name, reply in self.exchange.ask(asked, self.config.rounds.deadline).items():
            try:
                check_name(name)
                numbers = _expect(reply).numbers
                if fault := find_bad_number(numbers, COUNTS):
                    raise InputError(fault)
            except InputError as error:
                self._leave_out(name, str(error))
            else:
                counts = {key: int(value) for key, value in numbers.items()}
                self._set(name, Member(labeled=counts[LABELED], unlabeled=counts[UNLABELED], test=counts[TEST]))

    def collect(self, names: Sequence[str]) -> None:
        """Ask clients for their style, and keep what can be used."""
        config = json.dumps(to_values(self.config.phase1), sort_keys=True)
        request = Request("contribute", settings={"config": config, "seed": self.config.seed})
        asked = dict.fromkeys(self._open(names), request)
        if not asked:
            return
        shapes = expected_shapes(self.config.phase1, None)
        for name, reply in self.exchange.ask(asked, self.config.upload_deadline).items():
            try:
                found = _expect(reply)
                if fault := find_fault(found.arrays, shapes) or find_bad_number(found.numbers, frozenset((VERDICT,))):
                    raise InputError(fault)
                if found.numbers[VERDICT] >= VERDICTS.index(Verdict.REFUSED):
                    raise InputError("its style was refused: its images do not look like stained tissue")
            except InputError as error:
                self._leave_out(name, str(error))
            else:
                self.uploads.put(name, found.arrays)
                self.progress.event("upload", client=name, verdict=VERDICTS[int(found.numbers[VERDICT])].value)

    def assemble(self) -> str | None:
        """Return the digest of the global BottleGAN of all uploads, made if need be; None if there are no uploads."""
        return assemble_styles(self.folder, self.config, self.reference_set, self.progress)

    def deliver(self, names: Sequence[str], digest: str | None) -> None:
        """Give the styles to those clients that have not got these."""
        behind = [name for name in names if self.members.clients[name].styles != digest]
        if digest is None or not behind:
            return
        content = torch.from_numpy(np.frombuffer((self.folder / STYLES).read_bytes(), np.uint8).copy())
        asked = {name: Request("styles", {"model": content}, {"style": name}) for name in behind}
        for name, reply in self.exchange.ask(asked, self.config.rounds.deadline).items():
            if isinstance(reply, Absence):
                self._leave_out(name, reply.reason)
            else:
                self.left_out.pop(name, None)
                self._set(name, replace(self.members.clients[name], styles=digest))

    def _open(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self.left_out]

    def _set(self, name: str, member: Member) -> None:
        self.members = replace(self.members, clients={**self.members.clients, name: member})
        write_members(self.folder, self.members)

    def _leave_out(self, name: str, reason: str) -> None:
        self.left_out[name] = reason
        self.progress.event("left out", client=name, reason=reason)


def _expect(reply: Reply | Absence) -> Reply:
    if isinstance(reply, Absence):
        raise InputError(reply.reason)
    return reply


def assemble_styles(
    folder: Path, config: "FederationConfig", reference_set: Sequence[Levels] | None, progress: Progress
) -> str | None:
    """Make the global BottleGAN in `folder` of all uploads there, unless it is of these; return its digest."""
    path, uploads = folder / STYLES, UploadStore(folder / UPLOADS)
    names = sorted(uploads.names())
    if not names:
        path.unlink(missing_ok=True)
        return None
    if not path.exists() or sorted(read_document(path).styles) != names:
        model = assemble(
            uploads.read_all(),
            config.phase1,
            reference_set=reference_set,
            prior=None,
            seed=config.seed,
            progress=progress,
        )
        save_model(model, path, {"seed": config.seed, "clients": len(names)}, read_document(PRIOR).reference)
        progress.event("styles", clients=list(names))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_members(folder: Path) -> Members:
    """Return the clients of the federation in `folder`."""
    path = folder / MEMBERS
    return load(Members, path) if path.exists() else Members(clients={})


def write_members(folder: Path, members: Members) -> None:
    """Keep the clients of the federation in `folder`."""
    write_text(folder / MEMBERS, to_json(members))
