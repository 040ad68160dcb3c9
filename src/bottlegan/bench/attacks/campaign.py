"""The whole campaign: every kind of attack, one function each, and one table."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from bottlegan.bench.attacks.files import read_hostile_files
from bottlegan.bench.attacks.poison import attack_by_poison
from bottlegan.bench.attacks.replies import lie_about_scores, replay, send_junk
from bottlegan.bench.attacks.row import Row
from bottlegan.bench.attacks.state import flip_bits, kill_anywhere
from bottlegan.bench.attacks.world import draw_world
from bottlegan.core.errors import InputError
from bottlegan.core.files import make_folder
from bottlegan.core.progress import Progress, Silent

Attack = Callable[[Path, Progress], list[Row]]
"""What makes one kind of attack, in a folder of its own, and says how it went."""


def list_attacks(labs: int = 20, rounds: int = 25, seed: int = 0, *, compare: bool = False) -> Mapping[str, Attack]:
    """Return all kinds of attack; poison is given in federations of so many labs and rounds."""
    return {
        "tallies": lie_about_scores,
        "replies": send_junk,
        "replay": replay,
        "files": read_hostile_files,
        "bitflips": flip_bits,
        "kills": kill_anywhere,
        "poison": partial(_poison, (labs, rounds, seed), compare),
    }


def bench_attacks(
    folder: Path,
    kinds: Sequence[str] = (),
    *,
    labs: int = 20,
    rounds: int = 25,
    seed: int = 0,
    compare: bool = False,
    progress: Progress | None = None,
) -> list[Row]:
    """Attack our own federation, and return how it went.

    Args:
        folder: Where all runs are kept. What is there already of the poisoned ones is not run again.
        kinds: Kinds of attack, in this order; all of them by default.
        labs: In the federations that are poisoned, of which a quarter is hostile.
        rounds: Of these.
        seed: Of these: other seeds, other tissue.
        compare: Whether to poison the plain mean of all labs, too.
        progress: Where to report progress.
    """
    known = list_attacks(labs, rounds, seed, compare=compare)
    if odd := [kind for kind in kinds if kind not in known]:
        raise InputError(f"there is no kind of attack called {odd[0]}; there are: {', '.join(known)}")
    if labs < 8:
        raise InputError(f"{labs} labs are too few to tell who is odd when a quarter is; give at least 8")
    torch.set_num_threads(1)
    rows: list[Row] = []
    for kind in kinds or known:
        make_folder(folder / kind)
        rows += known[kind](folder / kind, progress or Silent())
    return rows


def _poison(world: tuple[int, int, int], compare: bool, folder: Path, progress: Progress) -> list[Row]:
    labs, rounds, seed = world
    return attack_by_poison(draw_world(labs, rounds, progress, seed), folder, progress, compare=compare)
