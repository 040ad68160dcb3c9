"""A private round on the server: it learns the sum of the labs' updates, with noise if so set, and adds it up blindly.

With secure aggregation there are four steps, which `protocol.secure` lists. A lab may be gone after any of them, if two
thirds stay to the end; then its masks are made up for, and nothing of its update is in the sum.
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
    """One round: whom it reaches, and who was left out of it so far, and why."""

    exchange: Exchange
    config: FederationConfig
    number: int
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def privacy(self) -> PrivacyConfig:
        """How private it is."""
        return self.config.privacy

    def ask(
        self, requests: Mapping[str, Request], check: Callable[[Reply], object], least: int = 0
    ) -> dict[str, Reply]:
        """Return the replies that can be used; a round that gets fewer than `least` counts for nothing."""
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
                f"round {self.number}: {len(good)} labs have answered to {kind}, at least {least} are needed "
                f"({why or 'no others were there'}); see to these labs, then resume"
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
    """Return the average of the weights that labs have trained, who they are, and who was left out and why.

    Args:
        exchange: Reaches the labs.
        chosen: Who is asked.
        request: To train, with the weights that all begin with.
        config: Of the federation.
        number: Of the round.
        noise_key: What the server's own noise depends on, if it adds some.
    """
    told = PrivateRound(exchange, config, number)
    said = {PRIVACY: json.dumps(to_values(config.privacy), sort_keys=True)}
    request = Request("train", request.arrays, {**request.settings, **said})
    numbers = sum(tensor.numel() for tensor in request.arrays.values())
    if config.privacy.secure:
        grid, total, trained = _sum_masked(told, chosen, request, numbers)
    else:
        grid = Grid(config.privacy, len(chosen), numbers)
        updates = _train(told, chosen, request, grid)
        total, trained = _add(updates.values(), numbers), sorted(updates)
    row = grid.from_whole(total)
    if not grid.is_possible(row, len(trained)):
        raise FederationError(
            f"round {number}: the sum is longer than {len(trained)} updates can be: a lab does not cut its update, or "
            "masks it wrongly, and nobody can tell which; find it, or run without privacy.secure, then resume"
        )
    if config.privacy.noise and config.privacy.noise_at == "server":
        # Another for every other sum: the difference of two sums with the same noise would have none.
        seed = derive(bytes.fromhex(noise_key), f"{number} ".encode() + total.tobytes())
        row = row + config.privacy.noise * config.privacy.clip * draw_normal(seed, numbers)
    left_out = {name: reason for name, reason in told.left_out.items() if name not in trained}
    return add_row(request.arrays, row / len(trained)), trained, left_out


def _sum_masked(
    told: PrivateRound, chosen: Sequence[str], request: Request, numbers: int
) -> tuple[Grid, Whole, list[str]]:
    """Return the sum of the updates of labs that have trained, none of which is known here, and who they are."""
    circle = _gather_keys(told, chosen, request)
    shares = _gather_shares(told, circle)
    partners, grid = sorted(shares), Grid(told.privacy, len(circle.names), numbers)
    asked = Request("train", request.arrays, {**request.settings, PARTNERS: json.dumps(partners)})
    masked = _train(told, partners, asked, grid, circle.needed)
    trained = sorted(masked)
    revealed = _unmask(told, circle, shares, trained)
    total = _add(masked.values(), numbers)
    for name in partners:
        secret = _combine(circle, revealed, partners.index(name))
        if name in masked:
            if not is_seed(secret, circle.find(name)):
                raise _wrong_share(told, name)
            total = total - expand(secret, numbers)
        elif is_masking_key(secret, circle.find(name)):
            total = total - _add(_masks_with(circle, name, secret, trained, numbers), numbers)
        else:
            raise _wrong_share(told, name)
    return grid, total, trained


def _masks_with(circle: Circle, gone: str, masking: bytes, trained: Sequence[str], numbers: int) -> list[Whole]:
    """Return the masks that labs have in common with one that is gone, with the signs that they have there."""
    masks = []
    for name in trained:
        mask = expand(agree_on_mask(masking, circle.find(name), circle.pair(gone, name)), numbers)
        masks.append(mask if name < gone else np.negative(mask))
    return masks


def _gather_keys(told: PrivateRound, chosen: Sequence[str], request: Request) -> Circle:
    asked = Request("keys", settings={"round": told.number, PRIVACY: request.settings[PRIVACY]})
    found = told.ask(
        dict.fromkeys(chosen, asked), lambda reply: to_bytes(reply.arrays.get(KEYS), 1, PUBLIC_BYTES), LEAST_LABS
    )
    names = sorted(found)
    return make_circle(names, [to_bytes(found[name].arrays[KEYS], 1, PUBLIC_BYTES)[0] for name in names])


def _gather_shares(told: PrivateRound, circle: Circle) -> dict[str, list[bytes]]:
    """Return what each lab has sealed for each, in the order of the circle."""
    count = len(circle.names)
    asked = Request("shares", {KEYS: from_bytes(circle.public)}, {NAMES: json.dumps(circle.names)})
    found = told.ask(
        dict.fromkeys(circle.names, asked),
        lambda reply: to_bytes(reply.arrays.get(SHARES), count, SEALED_BYTES),
        circle.needed,
    )
    return {name: to_bytes(reply.arrays[SHARES], count, SEALED_BYTES) for name, reply in found.items()}


def _train(told: PrivateRound, names: Sequence[str], request: Request, grid: Grid, least: int = 0) -> dict[str, Whole]:
    """Return the private updates of labs that have trained."""

    def check(reply: Reply) -> None:
        if fault := find_fault(reply.arrays, {UPDATE: (grid.numbers,)}, torch.int32):
            raise InputError(fault)

    asked = Request("train", request.arrays, {**request.settings, LABS: grid.labs})
    found = told.ask(dict.fromkeys(names, asked), check, least)
    return {name: from_tensor(reply.arrays[UPDATE]) for name, reply in found.items()}


def _unmask(
    told: PrivateRound, circle: Circle, shares: Mapping[str, Sequence[bytes]], trained: Sequence[str]
) -> dict[str, list[bytes]]:
    """Return one share of the secret of each lab that had shared, by the lab that has given it."""
    partners = sorted(shares)
    asked = {
        name: Request(
            "unmask",
            {SHARES: from_bytes([shares[each][circle.names.index(name)] for each in partners])},
            {TRAINED: json.dumps(list(trained))},
        )
        for name in trained
    }

    def check(reply: Reply) -> None:
        to_bytes(reply.arrays.get(REVEALED), len(partners), SHARE_BYTES)

    found = told.ask(asked, check, circle.needed)
    return {name: to_bytes(reply.arrays[REVEALED], len(partners), SHARE_BYTES) for name, reply in found.items()}


def _combine(circle: Circle, revealed: Mapping[str, Sequence[bytes]], row: int) -> bytes:
    """Return the secret of a lab that enough others have given their shares of."""
    found = [(circle.names.index(giver), shares[row]) for giver, shares in revealed.items()]
    return combine(found[: circle.needed])


def _add(updates: Collection[Whole], numbers: int) -> Whole:
    total = np.zeros(numbers, np.uint32)
    for update in updates:
        total = total + update
    return total


def _wrong_share(told: PrivateRound, name: str) -> FederationError:
    return FederationError(
        f"round {told.number}: the shares of {name} do not fit together: it, or a lab that gave one, has sent "
        "a wrong one; resume, and if it happens again, run without privacy.secure to find it"
    )
