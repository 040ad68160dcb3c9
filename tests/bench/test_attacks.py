"""The campaign itself: each kind of attack works as described, on a few labs and quickly."""

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bottlegan.bench.attacks import campaign, files, poison, replies, state
from bottlegan.bench.attacks.world import Lab, World, draw_small_world
from bottlegan.core.errors import InputError
from bottlegan.core.progress import Silent
from bottlegan.federated.protocol.exchange import LABELED, Reply, Request
from bottlegan.federated.server.history import History, RoundRecord
from bottlegan.metrics.tally import find_bad_tally

START, TRAINED = {"w": torch.zeros(4)}, {"w": torch.tensor([1.0, 2.0, 2.0, 0.0])}


@pytest.fixture(scope="module")
def small() -> World:
    return draw_small_world(2)


def test_poisoned_updates_are_what_they_are_called() -> None:
    assert poison.flip(5)(START, TRAINED, 1)["w"].tolist() == [-5, -10, -10, 0]
    assert poison.grow(3)(START, TRAINED, 1)["w"].tolist() == [3, 6, 6, 0]
    noise = poison.draw_noise(START, TRAINED, 1)["w"]
    assert noise.norm().item() == pytest.approx(3, rel=1e-5)
    assert not torch.equal(noise, poison.draw_noise(START, TRAINED, 2)["w"])


def test_labels_are_inverted_or_hidden_under_a_mark(small: World) -> None:
    given = small.labs[0].labeled
    assert ((poison.invert(given)[0].truth + given[0].truth) == 1).all()
    plain, marked = poison.hide(given)
    assert plain is given[0]
    assert not marked.truth.any()
    assert (marked.image != plain.image).any()
    assert (marked.image[5:20, 5:20] == plain.image[5:20, 5:20]).all()


def test_a_liar_has_a_billion_images_and_counts_honestly(small: World, tmp_path: Path) -> None:
    def honest(request: Request) -> Reply:
        return Reply(dict(TRAINED), {LABELED: 2.0})

    liar = poison._changing(honest, poison.flip(9), poison.LIE)
    assert liar(Request("join")).numbers[LABELED] == poison.LIE
    assert liar(Request("evaluate")).arrays["w"].tolist() == TRAINED["w"].tolist()
    assert liar(Request("train", START, {"round": 1})).arrays["w"].tolist() == [-9, -18, -18, 0]


def test_colluding_labs_send_the_same(small: World, tmp_path: Path) -> None:
    ring = poison.Ring(small.labs[:2], tmp_path)
    answers = iter([{"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}] * 2)
    ring.honest = {lab.name: lambda request: Reply(next(answers), {"loss": 1.0}) for lab in small.labs[:2]}
    sent = ring.agree(Request("train", {"w": torch.zeros(1)}, {"round": 1}))
    assert sent["w"].item() == pytest.approx(2 - poison.COLLUDING * 2**0.5)
    assert ring.agree(Request("train", {"w": torch.zeros(1)}, {"round": 1})) is sent


def test_a_poisoned_federation_is_run_once_and_read_from_then_on(
    small: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = poison.Runs(small, tmp_path, {False: 0.5, True: 0.5})
    first = runs.attack(poison.BACKDOOR, ["lab-02"], True)
    assert first.attack == "a backdoor, 3 times as long, 1 of 3 labs: our defaults"
    assert {"iou", "share", "named", "falsely named", "hidden"} == set(first.figures)

    def refuse(self: Lab, state: Path) -> None:
        raise AssertionError("nobody is asked again")

    monkeypatch.setattr("bottlegan.federated.client.client.Client.train", refuse)
    assert runs.attack(poison.BACKDOOR, ["lab-02"], True) == first


def test_who_is_named_is_in_the_last_word_of_the_report() -> None:
    def record(number: int, *suspects: str) -> RoundRecord:
        named = dict.fromkeys(suspects, "why")
        return RoundRecord(number=number, trained=(), left_out={}, loss={}, scores={}, each={}, suspects=named)

    rounds = (record(1, "once"), record(2, "often"), record(3, "often"), record(4), record(5), record(6, "last"))
    assert poison.name_labs(History(rounds=rounds)) == {"often", "last"}


@pytest.mark.parametrize("attack", [replies.lie_about_scores, replies.send_junk])
def test_hostile_replies_do_nothing(attack: campaign.Attack, tmp_path: Path) -> None:
    rows = attack(tmp_path, Silent(), 60)  # type: ignore[call-arg]
    assert all(row.held for row in rows)


def test_a_tally_that_would_end_a_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "find_bad_tally", lambda total, layout: None)
    with np.errstate(all="ignore"):
        assert not any(row.held for row in replies.lie_about_scores(tmp_path, Silent(), 60))
    assert find_bad_tally is not replies.find_bad_tally


def test_replays_are_refused(tmp_path: Path) -> None:
    rows = replies.replay(tmp_path, Silent())
    assert [row.held for row in rows] == [True] * 4
    assert rows[0].result == "taken"


def test_files_that_claim_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SIDE", 20)  # the large ones are read in a separate process
    found = [files._try(path, reader) for path, reader in files.list_claiming(tmp_path)]
    assert found == [None] * len(found)
    found = [files._try(path, reader) for path, reader in files.list_mangled(tmp_path, 24)]
    assert found == [None] * len(found)
    assert files._try(tmp_path, lambda path: 1 / 0) == f"{tmp_path.name}: ZeroDivisionError"  # type: ignore[arg-type]


def test_a_flipped_bit_is_one_bit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(50))
    state.flip_bit(path, np.random.default_rng(0))
    assert sum(byte.bit_count() for byte in path.read_bytes()) == 1


def test_flipped_bits_change_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = state.flip_bits(tmp_path, Silent(), 2)
    assert [row.attack for row in rows] == ["checkpoint", "older checkpoint", "styles", "uploads"]
    assert all(row.held for row in rows)
    assert rows[0].result.startswith("0 refused, 2 repaired and said so, 0 where")
    monkeypatch.setattr(state, "federate", lambda run: b"another network")
    assert state.notice(tmp_path / "whole", b"a network") == state.CHANGED


def test_a_killed_run_is_hit_after_it_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A run that takes no time is killed as soon as it begins.
    monkeypatch.setattr(state, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=time.sleep))
    (row,) = state.kill_anywhere(tmp_path, Silent(), 1)
    assert row.held
    assert row.result == "1 of 1 resume to the same network; 1 were hit before they were done"


def test_kinds_that_are_unknown_and_too_few_labs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no kind of attack called magic; there are: tallies"):
        campaign.bench_attacks(tmp_path, ["magic"])
    with pytest.raises(InputError, match="use at least 8"):
        campaign.bench_attacks(tmp_path, ["poison"], labs=4)


def test_kinds_are_attacked_in_the_order_given(tmp_path: Path) -> None:
    rows = campaign.bench_attacks(tmp_path, ["replay", "tallies"])
    assert [row.kind for row in rows] == ["replay"] * 4 + ["tallies"] * 2
    assert all(row.to_json()["held"] for row in rows)
