import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottlegan.core.config import parse, to_json, to_values
from bottlegan.core.errors import ConfigError, InputError
from bottlegan.data.partition import Partition, PartitionSpec, draw_partition

PATCHES = {f"{i:03d}": (448, 400) for i in range(240)}


@st.composite
def specs(draw: st.DrawFn) -> PartitionSpec:
    clients = draw(st.integers(1, 6))
    labeled = draw(st.integers(0, clients))
    most = draw(st.integers(1, 11))
    return PartitionSpec(
        clients=clients,
        train=draw(st.integers(1, 4)),
        test=draw(st.integers(1, 4)),
        reference=draw(st.integers(0, 10)),
        labeled_clients=labeled,
        windows=draw(st.integers(labeled, labeled * most)),
        window_size=draw(st.integers(1, 400)),
        most_windows=most,
        folds=3,
    )


@given(specs(), st.integers(0, 99), st.integers(0, 2))
def test_every_patch_is_in_one_place_and_every_window_inside_its_patch(
    spec: PartitionSpec, seed: int, fold: int
) -> None:
    partition = draw_partition(PATCHES, spec, seed, fold)
    held = [*partition.reference, *partition.validation]
    for client in partition.clients:
        held += [*client.train, *client.test]
        assert len(client.windows) <= spec.most_windows
        for window in client.windows:
            height, width = PATCHES[window.patch]
            assert window.patch in client.train
            assert 0 <= window.top <= height - window.size
            assert 0 <= window.left <= width - window.size
    assert sorted(held) == sorted(PATCHES)
    assert sum(client.labeled for client in partition.clients) == spec.labeled_clients
    assert sum(len(client.windows) for client in partition.clients) == spec.windows


def test_the_default_is_the_papers_experiment() -> None:
    partition = draw_partition(PATCHES, PartitionSpec(), seed=0, fold=0)
    counts = [len(client.windows) for client in partition.clients if client.labeled]
    assert (len(partition.clients), len(counts), sum(counts)) == (20, 10, 60)
    assert min(counts) >= 1
    assert max(counts) <= 11
    assert len({client.style for client in partition.clients}) == 20


def test_a_partition_depends_on_its_seed_only() -> None:
    first = draw_partition(PATCHES, PartitionSpec(), seed=1, fold=0)
    shuffled = dict(reversed(PATCHES.items()))
    assert draw_partition(shuffled, PartitionSpec(), seed=1, fold=0) == first
    assert draw_partition(PATCHES, PartitionSpec(), seed=2, fold=0) != first


def test_folds_keep_the_labs_and_change_their_patches() -> None:
    folds = [draw_partition(PATCHES, PartitionSpec(), 0, fold) for fold in range(3)]
    assert len({tuple(client.style for client in fold.clients) for fold in folds}) == 1
    assert len({tuple(client.labeled for client in fold.clients) for fold in folds}) == 1
    tested = [{patch for client in fold.clients for patch in client.test} for fold in folds]
    assert len(tested[0] | tested[1] | tested[2]) == 240
    assert len(tested[0] & tested[1]) == 20


def test_a_partition_survives_json() -> None:
    partition = draw_partition(PATCHES, PartitionSpec(), seed=0, fold=1)
    assert parse(Partition, json.loads(to_json(partition)), "partition.json") == partition


def test_a_patch_in_two_places_is_refused() -> None:
    partition = draw_partition(PATCHES, PartitionSpec(), seed=0, fold=0)
    values = to_values(partition)
    values["clients"][0]["test"][0] = values["clients"][1]["train"][0]
    with pytest.raises(ConfigError, match="is held twice"):
        parse(Partition, values, "partition.json")


def test_labels_for_foreign_patches_and_equal_names_are_refused() -> None:
    partition = draw_partition(PATCHES, PartitionSpec(), seed=0, fold=0)
    labeled = next(client for client in partition.clients if client.labeled)
    stray = replace(labeled, windows=(replace(labeled.windows[0], patch=labeled.test[0]),))
    with pytest.raises(ConfigError, match="does not train on"):
        replace(partition, clients=(stray,))
    twins = tuple(replace(client, name="lab") for client in partition.clients)
    with pytest.raises(ConfigError, match="two clients are called lab"):
        replace(partition, clients=twins)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 0}, "at least 1"),
        ({"labeled_clients": 21}, "labeled_clients"),
        ({"windows": 111}, "10 to 110 windows"),
        ({"windows": 9}, "10 to 110 windows"),
    ],
)
def test_impossible_numbers_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PartitionSpec(**change)


@pytest.mark.parametrize(
    ("patches", "fold", "message"),
    [
        (dict(list(PATCHES.items())[:223]), 0, "at least 224"),
        (PATCHES | {"small": (299, 448)}, 0, "small is smaller than a window"),
        (PATCHES, 3, "fold 3 does not exist"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(patches: dict[str, tuple[int, int]], fold: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw_partition(patches, PartitionSpec(), 0, fold)
