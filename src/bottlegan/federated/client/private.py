"""A lab's half of a private round: its noise, its masks, its budget, and what it insists on.

The secrets of a round are in the lab's state folder, for each request may start a new process. What a mask has hidden
once, it hides nothing else: a second update under the same masks would give away how the two differ. And what was
revealed of the others is revealed once, for one list of who has replied.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from bottlegan.core.config import document
from bottlegan.core.errors import InputError
from bottlegan.core.state import (
    from_stamped_json,
    read_document,
    read_generation,
    to_stamped_json,
    write_document,
    write_generation,
)
from bottlegan.federated.client.holdings import Demands
from bottlegan.federated.protocol.accounting import Spent, find_epsilon
from bottlegan.federated.protocol.exchange import RefusalError, Reply, Request
from bottlegan.federated.protocol.masking import (
    PUBLIC_BYTES,
    SEALED_BYTES,
    SHARE_BYTES,
    agree_on_mask,
    derive,
    draw_normal,
    draw_secret,
    expand,
    publish,
    seal,
    split,
    unseal,
)
from bottlegan.federated.protocol.privacy import UPDATE, Floats, Grid, PrivacyConfig, Whole, to_tensor
from bottlegan.federated.protocol.secure import (
    KEYS,
    REVEALED,
    SHARES,
    Circle,
    from_bytes,
    make_circle,
    to_bytes,
)

KEPT = 8
"""Releases that are remembered, because they may be asked for again."""


@document
class Session:
    """The secrets of one round, in hexadecimal, and what they were used for."""

    sealing: str
    masking: str
    seed: str
    names: tuple[str, ...] = ()
    public: tuple[str, ...] = ()
    masked: str = ""
    """Digest of the update that was masked."""
    partners: tuple[str, ...] = ()
    """With whom."""
    revealed: tuple[str, ...] = ()
    """Who had replied, as the server said when it asked for shares."""

    @property
    def circle(self) -> Circle:
        """The labs that it is a session with."""
        return make_circle(self.names, [bytes.fromhex(each) for each in self.public])


@document
class NoiseKey:
    """What a lab's noise depends on, and nobody else knows."""

    key: str


@document
class Budget:
    """What a lab has released so far."""

    spent: Spent = Spent()
    released: tuple[str, ...] = ()
    """Digests of the last releases: the same one again has the same noise, and costs nothing."""


class Private:
    """The private side of a lab, in its state folder."""

    def __init__(self, state: Path, demands: Demands) -> None:
        """Go on with what is there."""
        self.demands = demands
        self._session, self._noise, self._budget = (
            state / f"{name}.json" for name in ("session", "noise_key", "budget")
        )

    def check(self, privacy: PrivacyConfig) -> None:
        """Refuse rounds that are less private than the lab insists on, and any once its budget is spent."""
        if self.demands.secure and not privacy.secure:
            raise RefusalError("its lab.toml insists on secure aggregation; set privacy.secure = true")
        if self.demands.epsilon is None:
            return
        if not privacy.noise or privacy.noise_at != "labs":
            raise RefusalError("its lab.toml has a budget for privacy; set privacy.noise, and privacy.noise_at = labs")
        after = find_epsilon(self._read_budget().spent.after(privacy.noise), self.demands.delta)
        if after > self.demands.epsilon:
            raise RefusalError(
                f"its budget of epsilon {self.demands.epsilon:g} is spent; another round would go beyond"
            )

    def begin(self) -> Reply:
        """Make new secrets, and return what is public of them."""
        secrets = [draw_secret() for _ in range(3)]
        sealing, masking, seed = (secret.hex() for secret in secrets)
        write_document(self._session, Session(sealing=sealing, masking=masking, seed=seed))
        return Reply({KEYS: from_bytes([publish(*secrets)])})

    def share(self, request: Request, own: str, names: Sequence[str]) -> Reply:
        """Return what all labs need to make up for this one, sealed for each of them."""
        now = self._read_session()
        public = to_bytes(request.arrays.get(KEYS), len(names), PUBLIC_BYTES)
        circle = make_circle(names, public)
        if own not in names or circle.find(own) != self._publish(now):
            raise InputError("the server has other keys of this lab than it made")
        if now.names and now.circle != circle:
            raise InputError("the server wants shares of the same secrets for other labs")
        sealing, masking, seed = (bytes.fromhex(each) for each in (now.sealing, now.masking, now.seed))
        parts = zip(*(split(secret, circle.needed, len(names)) for secret in (seed, masking)), strict=True)
        sealed = [
            seal(of_seed + of_key, sealing, circle.find(name), circle.words(own, name))
            for name, (of_seed, of_key) in zip(names, parts, strict=True)
        ]
        keys = tuple(each.hex() for each in public)
        write_document(self._session, replace(now, names=tuple(names), public=keys))
        return Reply({SHARES: from_bytes(sealed)})

    def release(self, row: Floats, privacy: PrivacyConfig, labs: int, own: str, partners: Sequence[str]) -> Reply:
        """Return an update that may leave the lab: cut, with noise, rounded and, given partners, masked."""
        grid = Grid(privacy, labs, row.size)
        cut = grid.cut(row)
        if grid.deviation:
            cut = cut + grid.deviation * draw_normal(self._spend(cut, privacy), row.size)
        whole = grid.to_whole(cut)
        if privacy.secure:
            whole = whole + self._mask(hashlib.sha256(whole.tobytes()).hexdigest(), row.size, labs, own, partners)
        return Reply({UPDATE: to_tensor(whole)})

    def blur(self, code: Tensor, deviation: float) -> Tensor:
        """Return a style code with noise; the same code has the same noise, or asking often would average it away."""
        key = bytes.fromhex(self._read_noise_key())
        seed = derive(key, b"code " + json.dumps([deviation, code.tolist()]).encode())
        return code + deviation * torch.from_numpy(draw_normal(seed, code.numel())).to(code.dtype)

    def reveal(self, request: Request, own: str, trained: Sequence[str]) -> Reply:
        """Return one share of each partner: of the seed of those that have trained, of the key of the others."""
        now = self._read_session()
        circle, survived = now.circle, set(trained)
        if not now.masked or own not in survived or not survived <= set(now.partners):
            raise InputError("the server asks for shares of labs that this one has no masks with")
        if len(survived) < circle.needed:
            raise InputError(f"{len(survived)} labs have replied, {circle.needed} of {len(circle.names)} are needed")
        if now.revealed and set(now.revealed) != survived:
            raise InputError("the server has asked before, with another list of who has replied")
        write_document(self._session, replace(now, revealed=tuple(sorted(survived))))
        sealed = to_bytes(request.arrays.get(SHARES), len(now.partners), SEALED_BYTES)
        shares = []
        for name, each in zip(now.partners, sealed, strict=True):
            plain = unseal(each, bytes.fromhex(now.sealing), circle.find(name), circle.words(name, own))
            if plain is None:
                raise InputError("what another lab has sealed for this one was changed on its way")
            shares.append(plain[:SHARE_BYTES] if name in survived else plain[SHARE_BYTES:])
        return Reply({REVEALED: from_bytes(shares)})

    def _mask(self, digest: str, count: int, labs: int, own: str, partners: Sequence[str]) -> Whole:
        """Return the sum of this lab's masks: its own, and one with each partner, which the partner subtracts."""
        now = self._read_session()
        circle = now.circle
        if labs != len(circle.names):
            raise InputError(f"the server counts {labs} labs, but the keys of {len(circle.names)} were given")
        if own not in partners or not set(partners) <= set(now.names) or len(partners) < circle.needed:
            raise InputError(f"{len(partners)} labs have shared, {circle.needed} of {len(circle.names)} are needed")
        if (now.masked or digest, now.partners or tuple(partners)) != (digest, tuple(partners)):
            raise InputError("the masks of this round have hidden another update already")
        write_document(self._session, replace(now, masked=digest, partners=tuple(partners)))
        total = expand(bytes.fromhex(now.seed), count)
        for name in partners:
            if name != own:
                seed = agree_on_mask(bytes.fromhex(now.masking), circle.find(name), circle.pair(own, name))
                mask = expand(seed, count)
                total = total + mask if own < name else total - mask
        return total

    def _spend(self, cut: Floats, privacy: PrivacyConfig) -> bytes:
        """Return the seed of the noise for an update, which is then paid for, once."""
        key = bytes.fromhex(self._read_noise_key())
        said = json.dumps([privacy.clip, privacy.noise, privacy.secure]).encode()
        seed = derive(key, hashlib.sha256(cut.tobytes()).digest() + said)
        digest, before = hashlib.sha256(seed).hexdigest(), self._read_budget()
        if digest not in before.released:
            after = Budget(spent=before.spent.after(privacy.noise), released=(*before.released, digest)[-KEPT:])
            write_generation(self._budget, to_stamped_json(after))
        return seed

    def _read_budget(self) -> Budget:
        kept = read_generation(self._budget, "restore one of them from a backup: they say what was released so far")
        return Budget() if kept is None else from_stamped_json(Budget, kept.content, self._budget)

    def _read_noise_key(self) -> str:
        if not self._noise.exists():
            write_document(self._noise, NoiseKey(key=draw_secret().hex()))
        return read_document(NoiseKey, self._noise).key

    def _read_session(self) -> Session:
        return read_document(Session, self._session)

    def _publish(self, now: Session) -> bytes:
        return publish(*(bytes.fromhex(each) for each in (now.sealing, now.masking, now.seed)))
