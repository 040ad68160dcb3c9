"""Who holds what in a federation: which patches, which labeled windows, in which staining style.

A partition depends only on a seed. It is a document: it can be saved as JSON, read by a person, and loaded again. It
holds names, no pixels. No patch is ever both trained and tested on, whoever holds it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

import numpy as np

from bottlegan.core.config import document
from bottlegan.core.errors import ConfigError, InputError
from bottlegan.core.seeding import numpy_stream
from bottlegan.stain.style import PAPER, Style, Variety, draw_style


@document
class PartitionSpec:
    """How to distribute patches. The defaults are the paper's experiment on 240 patches."""

    clients: int = 20
    train: int = 5
    """Number of patches that each client trains on."""
    test: int = 5
    """Number of patches of each client that nobody trains on."""
    reference: int = 24
    """Number of patches in the public reference set."""
    labeled_clients: int = 10
    windows: int = 60
    """Total number of labeled windows."""
    window_size: int = 300
    most_windows: int = 11
    """Most windows of one labeled client; each holds at least one."""
    folds: int = 3
    variety: Variety = PAPER

    def __post_init__(self) -> None:
        """Check that the numbers are possible."""
        if min(self.clients, self.train, self.test, self.window_size, self.most_windows, self.folds) < 1:
            raise ConfigError("clients, train, test, window_size, most_windows and folds must be at least 1")
        if self.reference < 0 or not 0 <= self.labeled_clients <= self.clients:
            raise ConfigError(f"labeled_clients must be from 0 to {self.clients}, and reference at least 0")
        least, most = self.labeled_clients, self.labeled_clients * self.most_windows
        if not least <= self.windows <= most:
            raise ConfigError(
                f"{self.labeled_clients} labeled clients hold {least} to {most} windows, not {self.windows}"
            )


@document
class Window:
    """A labeled square of a patch, in pixels from the patch's upper left corner."""

    patch: str
    top: int
    left: int
    size: int


@document
class LabShare:
    """One lab: its style, its patches, and the labeled windows of its training patches."""

    name: str
    style: Style
    train: tuple[str, ...]
    test: tuple[str, ...]
    windows: tuple[Window, ...]

    @property
    def labeled(self) -> bool:
        """Whether the lab contributes labels."""
        return bool(self.windows)


@document
class Partition:
    """Who holds what."""

    seed: int
    fold: int
    reference: tuple[str, ...]
    """Patches of the public reference set."""
    validation: tuple[str, ...]
    """Patches that nobody trains or tests on."""
    clients: tuple[LabShare, ...]

    def __post_init__(self) -> None:
        """Check the properties that every user of a partition relies on."""
        held = chain(self.reference, self.validation, *((*client.train, *client.test) for client in self.clients))
        twice = [patch for patch, count in Counter(held).items() if count > 1]
        if twice:
            raise ConfigError(f"patch {twice[0]} is held twice; each may be in only one place")
        for client in self.clients:
            foreign = {window.patch for window in client.windows} - set(client.train)
            if foreign:
                raise ConfigError(f"{client.name} has a labeled window in {foreign.pop()}, which it does not train on")
        names = Counter(client.name for client in self.clients)
        if len(names) < len(self.clients):
            raise ConfigError(f"two clients are called {names.most_common(1)[0][0]}; names must differ")


def draw_partition(patches: Mapping[str, tuple[int, int]], spec: PartitionSpec, seed: int, fold: int) -> Partition:
    """Distribute `patches`, a mapping from name to (height, width).

    Folds of one seed differ in who holds which patch. The shuffled patches are rotated by a fold's share, so that test
    patches repeat as little as their number allows. The styles and the labeled clients stay the same.
    """
    if not 0 <= fold < spec.folds:
        raise InputError(f"fold {fold} does not exist; there are folds 0 to {spec.folds - 1}")
    patches_per_client = spec.train + spec.test
    needed = spec.clients * patches_per_client + spec.reference
    if len(patches) < needed:
        raise InputError(f"{len(patches)} patches are too few for {spec.clients} clients; at least {needed} are needed")
    small = [name for name, size in patches.items() if min(size) < spec.window_size]
    if small:
        raise InputError(f"patch {small[0]} is smaller than a window; lower window_size below {spec.window_size}")

    shuffled = numpy_stream(seed, "patches").permutation(sorted(patches)).tolist()
    start = fold * len(shuffled) // spec.folds
    dealt = shuffled[start:] + shuffled[:start]
    tested, trained, rest = _cut(dealt, spec.clients * spec.test, spec.clients * spec.train)
    reference, validation, _ = _cut(rest, spec.reference, len(rest))
    counts = draw_window_counts(spec, numpy_stream(seed, "labels"))
    clients = []
    for k in range(spec.clients):
        name = f"lab-{k + 1:02d}"
        train = tuple(trained[k * spec.train : (k + 1) * spec.train])
        clients.append(
            LabShare(
                name=name,
                style=draw_style(numpy_stream(seed, "style", k), name, spec.variety),
                train=train,
                test=tuple(tested[k * spec.test : (k + 1) * spec.test]),
                windows=draw_windows(
                    patches, train, counts[k], spec.window_size, numpy_stream(seed, fold, "window", k)
                ),
            )
        )
    return Partition(
        seed=seed, fold=fold, reference=tuple(reference), validation=tuple(validation), clients=tuple(clients)
    )


def draw_window_counts(spec: PartitionSpec, random: np.random.Generator) -> list[int]:
    """Return how many labeled windows each client holds: a random share for some, none for the others."""
    labeled = random.permutation(spec.clients)[: spec.labeled_clients]
    counts = np.zeros(spec.clients, dtype=int)
    counts[labeled] = 1
    # Unequal shares, like real labs: some label a lot, most label little.
    share = np.zeros(spec.clients)
    share[labeled] = random.dirichlet(np.full(spec.labeled_clients, 3.0)) if spec.labeled_clients else 0
    for _ in range(spec.windows - spec.labeled_clients):
        open_share = np.where((counts > 0) & (counts < spec.most_windows), share + 1e-9, 0)
        counts[random.choice(spec.clients, p=open_share / open_share.sum())] += 1
    return counts.tolist()


def draw_windows(
    patches: Mapping[str, tuple[int, int]],
    names: Sequence[str],
    count: int,
    size: int,
    random: np.random.Generator,
) -> tuple[Window, ...]:
    """Place `count` windows at random, spread evenly over the patches `names`."""
    windows = []
    for patch in np.resize(random.permutation(list(names)), count).tolist():
        height, width = patches[patch]
        top, left = random.integers(0, height - size + 1), random.integers(0, width - size + 1)
        windows.append(Window(patch=patch, top=int(top), left=int(left), size=size))
    return tuple(windows)


def _cut(items: list[str], *counts: int) -> list[list[str]]:
    """Cut `items` into pieces of these lengths and a remainder."""
    edges = np.cumsum([0, *counts]).tolist()
    return [*(items[a:b] for a, b in pairwise(edges)), items[edges[-1] :]]
