"""Phase 1 on the server: clients join, upload their styles, and receive the styles of all.

Each client is asked for its style once. When a client joins later, the others are not asked again. When one is removed,
its upload and its style are deleted.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bottlegan.core.config import to_values
from bottlegan.core.errors import ConfigError, InputError
from bottlegan.core.progress import Progress, Silent
from bottlegan.federated.protocol.exchange import (
    CLASS,
    LABELED,
    REFUSES,
    TEST,
    TEST_CLASS,
    UNLABELED,
    VERDICT,
    VERDICTS,
    Absence,
    Exchange,
    RefusalError,
    Reply,
    Request,
)
from bottlegan.federated.protocol.handshake import (
    HANDSHAKE,
    PRIOR_CONTENT,
    find_difference,
    from_tensor,
    introduce,
    to_text,
)
from bottlegan.federated.protocol.phase1 import expected_shapes, find_odd_style
from bottlegan.federated.protocol.privacy import PRIVACY
from bottlegan.federated.protocol.validation import find_bad_count, find_bad_number, find_fault
from bottlegan.federated.server.config import FederationConfig
from bottlegan.federated.server.folder import STYLES, UPLOADS, find_prior
from bottlegan.federated.server.members import Member
from bottlegan.federated.server.roster import Roster
from bottlegan.federated.server.styles import assemble_styles
from bottlegan.federated.server.uploads import UploadStore
from bottlegan.imaging.files import Pixels
from bottlegan.models.document import PRIOR, check_name
from bottlegan.models.weights import read_weights
from bottlegan.onboarding.verdict import Verdict

COUNTS = frozenset((LABELED, UNLABELED, TEST))


def run_phase1(
    exchange: Exchange,
    config: FederationConfig,
    folder: Path,
    roster: Roster | None = None,
    *,
    reference_set: Sequence[Pixels] | None = None,
    progress: Progress | None = None,
) -> Roster:
    """Let all new clients join, and bring the styles of all clients up to date.

    Uploads that are in `folder` already are not requested again.

    Args:
        exchange: Reaches the clients.
        config: The settings.
        folder: The folder of the run.
        roster: The clients so far; by default as stored in the folder.
        reference_set: The public reference set C, which phase 1 needs unless its method is `code`.
        progress: Where to report progress.
    """
    progress = progress or Silent()
    roster = roster or Roster(folder, progress)
    present = roster.wait(exchange, config.rounds)
    join(exchange, config, roster, roster.list_strangers(present))
    check_joined(config, roster, present)
    if config.phase2.mode != "plain":
        uploaded = set(UploadStore(folder / UPLOADS).names())
        collect(exchange, config, roster, [name for name in roster.list_joined(present) if name not in uploaded])
        roster.styles = assemble_styles(folder, config, reference_set, progress)
        deliver(exchange, config, roster, roster.list_behind(present))
    return roster


def join(exchange: Exchange, config: FederationConfig, roster: Roster, names: Sequence[str]) -> None:
    """Ask clients for the numbers of their images, and admit those whose versions and settings match."""
    if not names:
        return
    prior = find_prior(roster.folder)
    own = introduce(config.phase2, prior)
    sent = {} if prior == PRIOR else {PRIOR_CONTENT: read_bytes(prior)}
    settings = {HANDSHAKE: to_text(own), "config": json.dumps(to_values(config.phase2), sort_keys=True)}
    settings[PRIVACY] = json.dumps(to_values(config.privacy), sort_keys=True)
    asked = {name: Request("join", sent, {**settings, "client": name}) for name in names}
    classes, tested = ([f"{kind}{k}" for k in range(config.phase2.task.count)] for kind in (CLASS, TEST_CLASS))
    joined = {}
    for name, reply in exchange.ask(asked, config.rounds.deadline).items():
        try:
            check_name(name)
            answer = _expect(reply)
            numbers = answer.numbers
            if fault := find_difference(from_tensor(answer.arrays.get(HANDSHAKE)), own):
                raise RefusalError(fault)
            if fault := find_bad_count(numbers, COUNTS.union(classes, tested)):
                raise InputError(fault)
        except (InputError, RefusalError) as error:
            roster.leave_out(name, str(error))
        else:
            counts = {key: int(value) for key, value in numbers.items()}
            joined[name] = Member(
                labeled=counts[LABELED],
                unlabeled=counts[UNLABELED],
                test=counts[TEST],
                classes=tuple(counts[key] for key in classes),
                tested=tuple(counts[key] for key in tested),
            )
    roster.put(joined)


def check_joined(config: FederationConfig, roster: Roster, present: Sequence[str]) -> None:
    """Refuse a federation whose settings keep too many labs from joining, and classes without labels in any lab."""
    refusals = {name: reason for name, reason in roster.left_out.items() if reason.startswith(REFUSES)}
    joined = roster.list_joined(present)
    if refusals and len(joined) < config.rounds.least:
        why = "; ".join(f"{name}: {reason}" for name, reason in list(refusals.items())[:4])
        raise ConfigError(f"{len(joined)} of {len(present)} labs take part, {config.rounds.least} are needed ({why})")
    labeled = [member for member in roster.members.clients.values() if member.labeled]
    totals = [sum(counts) for counts in zip(*(member.classes for member in labeled), strict=True)]
    missing = [name for name, total in zip(config.phase2.task.classes, totals, strict=False) if total == 0]
    if missing:
        raise ConfigError(
            f"no lab has labels of the class {missing[0]}; give some, or remove it from phase2.task.classes"
        )


def collect(exchange: Exchange, config: FederationConfig, roster: Roster, names: Sequence[str]) -> None:
    """Ask clients for their styles, and store the valid ones."""
    settings = json.dumps(to_values(config.phase1), sort_keys=True)
    request = Request("contribute", settings={"config": settings, "seed": config.seed})
    prior = read_weights(find_prior(roster.folder))
    shapes = expected_shapes(config.phase1, prior.document)
    uploads = UploadStore(roster.folder / UPLOADS)
    uploaded = {}
    for name, reply in exchange.ask(dict.fromkeys(names, request), config.upload_deadline).items():
        try:
            answer = _expect(reply)
            if fault := find_fault(answer.arrays, shapes) or find_bad_number(answer.numbers, frozenset((VERDICT,))):
                raise InputError(fault)
            if fault := find_odd_style(answer.arrays, config.phase1, prior):
                raise InputError(fault)
            if answer.numbers[VERDICT] >= VERDICTS.index(Verdict.REFUSED):
                raise InputError("its style was refused: its images do not look like stained tissue")
        except InputError as error:
            roster.leave_out(name, str(error))
        else:
            uploads.put(name, answer.arrays)
            verdict = VERDICTS[int(answer.numbers[VERDICT])].value
            uploaded[name] = replace(roster.members.clients[name], verdict=verdict)
            roster.progress.event("upload", client=name, verdict=verdict)
    roster.put(uploaded)


def deliver(exchange: Exchange, config: FederationConfig, roster: Roster, names: Sequence[str]) -> None:
    """Send the current styles to clients that do not have them yet."""
    if roster.styles is None or not names:
        return
    delivered = {}
    asked = dict.fromkeys(names, Request("styles", {"model": read_bytes(roster.folder / STYLES)}))
    for name, reply in exchange.ask(asked, config.rounds.deadline).items():
        if isinstance(reply, Absence):
            roster.leave_out(name, reply.reason)
        else:
            delivered[name] = replace(roster.members.clients[name], styles=roster.styles)
    roster.put(delivered)


def read_bytes(path: Path) -> Tensor:
    """Return a file's bytes as a tensor for a request."""
    return torch.from_numpy(np.frombuffer(path.read_bytes(), np.uint8).copy())


def _expect(reply: Reply | Absence) -> Reply:
    if isinstance(reply, Absence):
        raise InputError(reply.reason)
    return reply
