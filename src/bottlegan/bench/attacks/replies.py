"""Hostile replies: replayed, sent in another lab's name, made of junk, or with impossible counts."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bottlegan.bench.attacks.row import Row
from bottlegan.core.progress import Progress
from bottlegan.core.task import Task
from bottlegan.federated.flower.exchange import FlowerExchange
from bottlegan.federated.flower.messages import pack_reply, pack_request, unpack_reply, unpack_request
from bottlegan.federated.folder.payload import pack_reply as to_bytes
from bottlegan.federated.folder.payload import unpack_reply as from_bytes
from bottlegan.federated.protocol.exchange import Absence, Reply, Request, Stamp, digest_request
from bottlegan.metrics.tally import compute_scores, find_bad_tally, tally
from bottlegan.training.task import lay_out

ODD = (float("nan"), float("inf"), -1.0, 0.0, 0.5, 1e9, 1e300, 2.0**53 + 2)
"""Numbers that a liar might send."""


Parts = tuple[Tensor, Tensor, Tensor, Tensor]
LIES: dict[str, Callable[[Parts], object]] = {
    "surprise without a pixel": lambda parts: [part.mul_(0) for part in (parts[0], parts[2])],
    "confidence above one": lambda parts: parts[2][0].add_(99),
    "no confidence": lambda parts: parts[2][0].mul_(0),
    "no bins": lambda parts: parts[2].mul_(0),
    "more right in bins than in counts": lambda parts: parts[2][1].copy_(parts[2][2]),
    "half a pixel": lambda parts: parts[0].add_(0.5),
    "endless surprise": lambda parts: parts[1].fill_(1e300),
    "endless counts": lambda parts: [part.fill_(1e308) for part in parts],
}
"""Tallies that no network can have on any images, made from the parts of a valid one."""


def replay(folder: Path, progress: Progress) -> list[Row]:
    """Return the effect of replies to other requests, and of a node with a false name."""
    asked = {number: Request("train", {"w": torch.ones(3)}, {"round": number, "seed": 0}) for number in (1, 2)}
    arrived = unpack_request("train", pack_request(asked[1]))
    stale = pack_reply(Reply({"w": torch.ones(3)}), Stamp("lab-01", digest_request(arrived)))
    replies = {
        "the reply of this round": unpack_reply(stale, Stamp("lab-01", digest_request(asked[1]))),
        "a reply of an earlier round": unpack_reply(stale, Stamp("lab-01", digest_request(asked[2]))),
        "a reply of another lab": unpack_reply(stale, Stamp("lab-02", digest_request(asked[1]))),
    }
    rows = []
    for row, (attack, reply) in enumerate(replies.items()):
        reason = reply.reason if isinstance(reply, Absence) else "taken"
        rows.append(Row("replay", attack, (reason == "taken") == (row == 0), reason))
    return [*rows, _join_twice()]


def _join_twice() -> Row:
    nodes = [SimpleNamespace(node_id=1, name="lab-01"), SimpleNamespace(node_id=2, name="lab-02")]
    grid: Any = SimpleNamespace(get_nodes=lambda: nodes)
    exchange = FlowerExchange(grid)
    before = exchange.clients()
    nodes.append(SimpleNamespace(node_id=3, name="lab-01"))
    held = exchange.clients() == before and exchange.nodes["lab-01"] == 1
    return Row("replay", "a second node under a lab's name", held, "refused" if held else "taken")


def send_junk(folder: Path, progress: Progress, count: int = 1000) -> list[Row]:
    """Return how many mangled replies end in anything other than a reply or a reason."""
    good = to_bytes(Reply({"w": torch.arange(64.0), "v": torch.ones(2, 3)}, {"loss": 1.0}))
    random, failed = np.random.default_rng(0), 0
    for _ in progress.track(range(count), "mangled replies", count):
        try:
            from_bytes(mangle(good, random))
        except Exception:
            failed += 1
    return [Row("replies", "mangled bytes", failed == 0, f"{failed} of {count} end in a traceback")]


def lie_about_scores(folder: Path, progress: Progress, count: int = 1000) -> list[Row]:
    """Return how many odd tallies are accepted, and how many would end a run."""
    layout, random = lay_out(Task()), np.random.default_rng(0)
    good = tally(torch.randn(200, 2, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 2, layout)
    believed = [lie for lie, change in LIES.items() if find_bad_tally(_change(good, change), layout) is None]
    first = Row("tallies", "lies that are made up", not believed, f"{len(believed)} of {len(LIES)} are believed")
    passed = ended = 0
    for _ in progress.track(range(count), "tallies", count):
        bad = spoil(good, random)
        if find_bad_tally(bad, layout) is None and bool(bad.any()):
            passed += 1
            ended += not all(np.isfinite(list(compute_scores(bad + good, layout, Task().classes).values())))
    result = f"{ended} of {count} would end a run; {passed} are possible, and pass"
    return [first, Row("tallies", "odd numbers, whole parts emptied or scaled", ended == 0, result)]


def _change(good: Tensor, change: Callable[[Parts], object]) -> Tensor:
    bad = good.clone()
    change(lay_out(Task()).split(bad))
    return bad


def mangle(content: bytes, random: np.random.Generator) -> bytes:
    """Return bytes with some changed, cut off or inserted."""
    changed = bytearray(content)
    for place in random.integers(len(changed), size=random.integers(1, 9)):
        changed[place] = random.integers(256)
    match random.integers(4):
        case 0:
            return bytes(changed[: random.integers(len(changed))])
        case 1:
            return bytes(changed) + random.bytes(20)
        case _:
            return bytes(changed)


def spoil(good: Tensor, random: np.random.Generator) -> Tensor:
    """Return a tally with some odd numbers, or with a part empty or replaced."""
    bad = good.clone()
    first, last = sorted(random.integers(len(good) + 1, size=2).tolist())
    match random.integers(3):
        case 0:
            bad[random.integers(len(good), size=3)] = float(random.choice(ODD))
        case 1:
            bad[first:last] = 0
        case _:
            bad[first:last] *= 1000
    return bad
