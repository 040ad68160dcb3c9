"""A private round on the server, which learns only the sum of the labs' updates, possibly with noise.

Secure aggregation has four steps, listed in `protocol.secure`. Labs may drop out after any step, as long as two thirds
stay to the end. The masks of a lab that dropped out are then removed, and its update is not in the sum.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from bottlegan.core.config import to_values
from bottlegan.core.errors import FederationError, InputError
from bottlegan.federated.protocol.exchange import Absence, Exchange, Reply, Request
from bottlegan.federated.protocol.masking import (
    PUBLIC_BYTES,
    SEALED_BYTES,
    SHARE_BYTES,
    agree_on_mask,
    combine,
    derive,
    draw_normal,
    expand,
    is_masking_key,
    is_seed,
)
from bottlegan.federated.protocol.privacy import (
    LABS,
    LEAST_LABS,
    PRIVACY,
    UPDATE,
    Grid,
    PrivacyConfig,
    Whole,
    add_row,
    from_tensor,
)
from bottlegan.federated.protocol.secure import (
    KEYS,
    NAMES,
    PARTNERS,
    REVEALED,
    SHARES,
    TRAINED,
    Circle,
    from_bytes,
    make_circle,
    to_bytes,
)
from bottlegan.federated.protocol.validation import find_bad_number, find_fault
from bottlegan.federated.server.config import FederationConfig
from bottlegan.models.networks import Weights


@dataclass
class PrivateRound:
    """One round, with the labs left out of it so far and why."""

    exchange: Exchange
    config: FederationConfig
    number: int
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def privacy(self) -> PrivacyConfig:
        """The privacy settings."""
        return self.config.privacy

    def ask(
        self, requests: Mapping[str, Request], check: Callable[[Reply], object], least: int = 0
    ) -> dict[str, Reply]:
        """Return the valid replies, or raise `FederationError` if there are fewer than `least`."""
        good = {}
        for name, reply in sorted(self.exchange.ask(requests, self.config.rounds.deadline).items()):
            try:
                if isinstance(reply, Absence):
                    raise InputError(reply.reason)
                if fault := find_bad_number(reply.numbers, frozenset()):
                    raise InputError(fault)
                check(reply)
            except InputError as error:
                self.left_out[name] = str(error)
            else:
                good[name] = reply
        least = max(least, self.config.rounds.least)
        if len(good) < least:
            kind = next(iter(requests.values())).kind if requests else "train"
            why = "; ".join(f"{name}: {reason}" for name, reason in list(self.left_out.items())[:4])
            raise FederationError(
                f"round {self.number}: {len(good)} labs have answered {kind!r}, at least {least} are needed "
                f"({why or 'no others were connected'}); fix these labs, then resume"
            )
        return good


def run_private(
    exchange: Exchange,
    chosen: Sequence[str],
    request: Request,
    config: FederationConfig,
    *,
    number: int,
    noise_key: str = "",
) -> tuple[Weights, list[str], dict[str, str]]:
    """Return the mean of the weights that labs have trained, the names of these labs, and who was left out and why.

    Args:
        exchange: Reaches the labs.
        chosen: The labs to ask.
        request: The request to train, with the initial weights.
        config: The federation's settings.
        number: The number of the round.
        noise_key: The key of the server's own noise, if it adds any.
    """
    this_round = PrivateRound(exchange, config, number)
    settings = {PRIVACY: json.dumps(to_values(config.privacy), sort_keys=True)}
    request = Request("train", request.arrays, {**request.settings, **settings})
    numbers = sum(tensor.numel() for tensor in request.arrays.values())
    if config.privacy.secure:
        grid, total, trained = _sum_masked(this_round, chosen, request, numbers)
    else:
        grid = Grid(config.privacy, len(chosen), numbers)
        updates = _train(this_round, chosen, request, grid)
        total, trained = _add(updates.values(), numbers), sorted(updates)
    row = grid.from_whole(total)
    if not grid.is_possible(row, len(trained)):
        raise FederationError(
            f"round {number}: the sum is longer than {len(trained)} updates can be: a lab does not clip its update, or "
            "masks it wrongly, and nobody can tell which lab; run without privacy.secure to find it, then resume"
        )
    if config.privacy.noise and config.privacy.noise_at == "server":
        # Every sum gets its own noise: two sums with the same noise would reveal their exact difference.
        seed = derive(bytes.fromhex(noise_key), f"{number} ".encode() + total.tobytes())
        row = row + config.privacy.noise * config.privacy.clip * draw_normal(seed, numbers)
    left_out = {name: reason for name, reason in this_round.left_out.items() if name not in trained}
    return add_row(request.arrays, row / len(trained)), trained, left_out


def _sum_masked(
    this_round: PrivateRound, chosen: Sequence[str], request: Request, numbers: int
) -> tuple[Grid, Whole, list[str]]:
    """Return the sum of the masked updates, without learning any of them, and the labs that trained."""
    circle = _gather_keys(this_round, chosen, request)
    shares = _gather_shares(this_round, circle)
    partners, grid = sorted(shares), Grid(this_round.privacy, len(circle.names), numbers)
    asked = Request("train", request.arrays, {**request.settings, PARTNERS: json.dumps(partners)})
    masked = _train(this_round, partners, asked, grid, circle.needed)
    trained = sorted(masked)
    revealed = _unmask(this_round, circle, shares, trained)
    total = _add(masked.values(), numbers)
    for name in partners:
        secret = _combine(circle, revealed, partners.index(name))
        if name in masked:
            if not is_seed(secret, circle.find(name)):
                raise _wrong_share(this_round, name)
            total = total - expand(secret, numbers)
        elif is_masking_key(secret, circle.find(name)):
            total = total - _add(_masks_with(circle, name, secret, trained, numbers), numbers)
        else:
            raise _wrong_share(this_round, name)
    return grid, total, trained


def _masks_with(circle: Circle, gone: str, masking: bytes, trained: Sequence[str], numbers: int) -> list[Whole]:
    """Return the masks that labs share with one that dropped out, with the signs that they have in the sum."""
    masks = []
    for name in trained:
        mask = expand(agree_on_mask(masking, circle.find(name), circle.pair(gone, name)), numbers)
        masks.append(mask if name < gone else np.negative(mask))
    return masks


def _gather_keys(this_round: PrivateRound, chosen: Sequence[str], request: Request) -> Circle:
    asked = Request("keys", settings={"round": this_round.number, PRIVACY: request.settings[PRIVACY]})
    replies = this_round.ask(
        dict.fromkeys(chosen, asked), lambda reply: to_bytes(reply.arrays.get(KEYS), 1, PUBLIC_BYTES), LEAST_LABS
    )
    names = sorted(replies)
    return make_circle(names, [to_bytes(replies[name].arrays[KEYS], 1, PUBLIC_BYTES)[0] for name in names])


def _gather_shares(this_round: PrivateRound, circle: Circle) -> dict[str, list[bytes]]:
    """Return what each lab has sealed for each other lab, in the order of the circle."""
    count = len(circle.names)
    asked = Request("shares", {KEYS: from_bytes(circle.public)}, {NAMES: json.dumps(circle.names)})
    replies = this_round.ask(
        dict.fromkeys(circle.names, asked),
        lambda reply: to_bytes(reply.arrays.get(SHARES), count, SEALED_BYTES),
        circle.needed,
    )
    return {name: to_bytes(reply.arrays[SHARES], count, SEALED_BYTES) for name, reply in replies.items()}


def _train(
    this_round: PrivateRound, names: Sequence[str], request: Request, grid: Grid, least: int = 0
) -> dict[str, Whole]:
    """Return the private updates of the labs that have trained."""

    def check(reply: Reply) -> None:
        if fault := find_fault(reply.arrays, {UPDATE: (grid.numbers,)}, torch.int32):
            raise InputError(fault)

    asked = Request("train", request.arrays, {**request.settings, LABS: grid.labs})
    replies = this_round.ask(dict.fromkeys(names, asked), check, least)
    return {name: from_tensor(reply.arrays[UPDATE]) for name, reply in replies.items()}


def _unmask(
    this_round: PrivateRound, circle: Circle, shares: Mapping[str, Sequence[bytes]], trained: Sequence[str]
) -> dict[str, list[bytes]]:
    """Return each lab's shares of its partners' secrets."""
    partners = sorted(shares)
    asked = {
        name: Request(
            "unmask",
            {SHARES: from_bytes([shares[partner][circle.names.index(name)] for partner in partners])},
            {TRAINED: json.dumps(list(trained))},
        )
        for name in trained
    }

    def check(reply: Reply) -> None:
        to_bytes(reply.arrays.get(REVEALED), len(partners), SHARE_BYTES)

    replies = this_round.ask(asked, check, circle.needed)
    return {name: to_bytes(reply.arrays[REVEALED], len(partners), SHARE_BYTES) for name, reply in replies.items()}


def _combine(circle: Circle, revealed: Mapping[str, Sequence[bytes]], row: int) -> bytes:
    """Return a lab's secret from the shares that the others have revealed."""
    shares_by_place = [(circle.names.index(giver), shares[row]) for giver, shares in revealed.items()]
    return combine(shares_by_place[: circle.needed])


def _add(updates: Collection[Whole], numbers: int) -> Whole:
    total = np.zeros(numbers, np.uint32)
    for update in updates:
        total = total + update
    return total


def _wrong_share(this_round: PrivateRound, name: str) -> FederationError:
    return FederationError(
        f"round {this_round.number}: the shares of {name} do not match: this lab, or one that holds a share, has sent "
        "a wrong one; resume and, if it happens again, run without privacy.secure to find it"
    )
