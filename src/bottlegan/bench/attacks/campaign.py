"""The whole campaign: one function per kind of attack, and one table."""

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
"""Runs one kind of attack in its own folder, and returns its rows."""


def list_attacks(labs: int = 20, rounds: int = 25, seed: int = 0, *, compare: bool = False) -> Mapping[str, Attack]:
    """Return all kinds of attack; labs, rounds and seed are those of the poisoned federations."""
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
    """Attack our own federation, and return the results.

    Args:
        folder: Folder for all runs. Finished poisoned runs there are not repeated.
        kinds: Kinds of attack, in this order; all of them by default.
        labs: Number of labs in the poisoned federations, a quarter of them hostile.
        rounds: Number of rounds in the poisoned federations.
        seed: Seed of the poisoned federations; other seeds draw other tissue.
        compare: Whether to poison federations with a plain mean, too.
        progress: Receives progress.
    """
    attacks = list_attacks(labs, rounds, seed, compare=compare)
    if odd := [kind for kind in kinds if kind not in attacks]:
        raise InputError(f"there is no kind of attack called {odd[0]}; there are: {', '.join(attacks)}")
    if labs < 8:
        raise InputError(f"{labs} labs are too few to find a hostile quarter; use at least 8")
    torch.set_num_threads(1)
    rows: list[Row] = []
    for kind in kinds or attacks:
        make_folder(folder / kind)
        rows += attacks[kind](folder / kind, progress or Silent())
    return rows


def _poison(world: tuple[int, int, int], compare: bool, folder: Path, progress: Progress) -> list[Row]:
    labs, rounds, seed = world
    return attack_by_poison(draw_world(labs, rounds, progress, seed), folder, progress, compare=compare)
