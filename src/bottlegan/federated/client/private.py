"""A lab's side of a private round: its noise, its masks, its budget and its conditions.

The secrets of a round are in the lab's state folder, because each request may start a new process. Masks hide one
update only: a second update under the same masks would reveal the difference of the two. Shares of the other labs'
secrets are revealed once, for one list of labs that have replied.
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
"""Number of remembered releases, which the server may ask for again."""


@document
class Session:
    """The secrets of one round, in hexadecimal, and their use so far."""

    sealing: str
    masking: str
    seed: str
    names: tuple[str, ...] = ()
    public: tuple[str, ...] = ()
    masked: str = ""
    """Digest of the update that was masked."""
    partners: tuple[str, ...] = ()
    """Labs that share a mask with this one."""
    revealed: tuple[str, ...] = ()
    """Labs that had replied, according to the server's request for shares."""

    @property
    def circle(self) -> Circle:
        """The labs of this session."""
        return make_circle(self.names, [bytes.fromhex(key) for key in self.public])


@document
class NoiseKey:
    """A lab's secret from which its noise is derived."""

    key: str


@document
class Budget:
    """The private updates that a lab has released so far."""

    spent: Spent = Spent()
    released: tuple[str, ...] = ()
    """Digests of the last releases. Repeating one has the same noise and costs nothing."""


class Private:
    """The private side of a lab, in its state folder."""

    def __init__(self, state: Path, demands: Demands) -> None:
        """Load the state in the folder `state`."""
        self.demands = demands
        self._session, self._noise, self._budget = (
            state / f"{name}.json" for name in ("session", "noise_key", "budget")
        )

    def check(self, privacy: PrivacyConfig) -> None:
        """Refuse rounds that are less private than the lab demands, and all rounds once its budget is spent."""
        if self.demands.secure and not privacy.secure:
            raise RefusalError("its lab.toml insists on secure aggregation; set privacy.secure = true")
        if self.demands.epsilon is None:
            return
        if not privacy.noise or privacy.noise_at != "labs":
            raise RefusalError("its lab.toml has a budget for privacy; set privacy.noise, and privacy.noise_at = labs")
        after = find_epsilon(self._read_budget().spent.after(privacy.noise), self.demands.delta)
        if after > self.demands.epsilon:
            raise RefusalError(
                f"its budget of epsilon {self.demands.epsilon:g} is spent; another round would exceed it"
            )

    def begin(self) -> Reply:
        """Draw new secrets and return their public part."""
        secrets = [draw_secret() for _ in range(3)]
        sealing, masking, seed = (secret.hex() for secret in secrets)
        write_document(self._session, Session(sealing=sealing, masking=masking, seed=seed))
        return Reply({KEYS: from_bytes([publish(*secrets)])})

    def share(self, request: Request, own: str, names: Sequence[str]) -> Reply:
        """Return shares of this lab's secrets, each sealed for one lab, in case this lab drops out."""
        session = self._read_session()
        public = to_bytes(request.arrays.get(KEYS), len(names), PUBLIC_BYTES)
        circle = make_circle(names, public)
        if own not in names or circle.find(own) != self._publish(session):
            raise InputError("the server has other keys of this lab than the lab made")
        if session.names and session.circle != circle:
            raise InputError("the server wants shares of the same secrets for other labs")
        sealing, masking, seed = (bytes.fromhex(secret) for secret in (session.sealing, session.masking, session.seed))
        parts = zip(*(split(secret, circle.needed, len(names)) for secret in (seed, masking)), strict=True)
        sealed = [
            seal(of_seed + of_key, sealing, circle.find(name), circle.words(own, name))
            for name, (of_seed, of_key) in zip(names, parts, strict=True)
        ]
        keys = tuple(key.hex() for key in public)
        write_document(self._session, replace(session, names=tuple(names), public=keys))
        return Reply({SHARES: from_bytes(sealed)})

    def release(self, row: Floats, privacy: PrivacyConfig, labs: int, own: str, partners: Sequence[str]) -> Reply:
        """Return an update that may leave the lab: clipped, with noise, rounded and, given partners, masked."""
        grid = Grid(privacy, labs, row.size)
        cut = grid.cut(row)
        if grid.deviation:
            cut = cut + grid.deviation * draw_normal(self._spend(cut, privacy), row.size)
        whole = grid.to_whole(cut)
        if privacy.secure:
            whole = whole + self._mask(hashlib.sha256(whole.tobytes()).hexdigest(), row.size, labs, own, partners)
        return Reply({UPDATE: to_tensor(whole)})

    def blur(self, code: Tensor, deviation: float) -> Tensor:
        """Return a style code with noise. The same code gets the same noise, so asking often cannot average it away."""
        key = bytes.fromhex(self._read_noise_key())
        seed = derive(key, b"code " + json.dumps([deviation, code.tolist()]).encode())
        return code + deviation * torch.from_numpy(draw_normal(seed, code.numel())).to(code.dtype)

    def reveal(self, request: Request, own: str, trained: Sequence[str]) -> Reply:
        """Return one share per partner: of its seed if it has trained, else of its masking key."""
        session = self._read_session()
        circle, survived = session.circle, set(trained)
        if not session.masked or own not in survived or not survived <= set(session.partners):
            raise InputError("the server asks for shares of labs that this one has no masks with")
        if len(survived) < circle.needed:
            raise InputError(f"{len(survived)} labs have replied, {circle.needed} of {len(circle.names)} are needed")
        if session.revealed and set(session.revealed) != survived:
            raise InputError("the server has asked before, with another list of labs that have replied")
        write_document(self._session, replace(session, revealed=tuple(sorted(survived))))
        sealed = to_bytes(request.arrays.get(SHARES), len(session.partners), SEALED_BYTES)
        shares = []
        for name, message in zip(session.partners, sealed, strict=True):
            plain = unseal(message, bytes.fromhex(session.sealing), circle.find(name), circle.words(name, own))
            if plain is None:
                raise InputError("a message that another lab sealed for this one was changed on its way")
            shares.append(plain[:SHARE_BYTES] if name in survived else plain[SHARE_BYTES:])
        return Reply({REVEALED: from_bytes(shares)})

    def _mask(self, digest: str, count: int, labs: int, own: str, partners: Sequence[str]) -> Whole:
        """Return the sum of this lab's masks: its own, and one per partner, which the partner cancels."""
        session = self._read_session()
        circle = session.circle
        if labs != len(circle.names):
            raise InputError(f"the server counts {labs} labs, but the keys of {len(circle.names)} were given")
        if own not in partners or not set(partners) <= set(session.names) or len(partners) < circle.needed:
            raise InputError(f"{len(partners)} labs have shared, {circle.needed} of {len(circle.names)} are needed")
        if (session.masked or digest, session.partners or tuple(partners)) != (digest, tuple(partners)):
            raise InputError("the masks of this round have hidden another update already")
        write_document(self._session, replace(session, masked=digest, partners=tuple(partners)))
        total = expand(bytes.fromhex(session.seed), count)
        for name in partners:
            if name != own:
                seed = agree_on_mask(bytes.fromhex(session.masking), circle.find(name), circle.pair(own, name))
                mask = expand(seed, count)
                total = total + mask if own < name else total - mask
        return total

    def _spend(self, cut: Floats, privacy: PrivacyConfig) -> bytes:
        """Return the seed of an update's noise, and charge the budget once."""
        key = bytes.fromhex(self._read_noise_key())
        settings = json.dumps([privacy.clip, privacy.noise, privacy.secure]).encode()
        seed = derive(key, hashlib.sha256(cut.tobytes()).digest() + settings)
        digest, before = hashlib.sha256(seed).hexdigest(), self._read_budget()
        if digest not in before.released:
            after = Budget(spent=before.spent.after(privacy.noise), released=(*before.released, digest)[-KEPT:])
            write_generation(self._budget, to_stamped_json(after))
        return seed

    def _read_budget(self) -> Budget:
        kept = read_generation(self._budget, "restore one of them from a backup: they record what was released so far")
        return Budget() if kept is None else from_stamped_json(Budget, kept.content, self._budget)

    def _read_noise_key(self) -> str:
        if not self._noise.exists():
            write_document(self._noise, NoiseKey(key=draw_secret().hex()))
        return read_document(NoiseKey, self._noise).key

    def _read_session(self) -> Session:
        return read_document(Session, self._session)

    def _publish(self, session: Session) -> bytes:
        return publish(*(bytes.fromhex(secret) for secret in (session.sealing, session.masking, session.seed)))
