from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bottlegan.core.state import write_document
from bottlegan.federated.server.folder import CONFIG, HISTORY, LOG, STYLES
from bottlegan.federated.server.history import History, RoundRecord
from bottlegan.federated.server.members import Member, Members, write_members
from bottlegan.models.document import PRIOR
from bottlegan.models.weights import read_weights, write_weights
from bottlegan.quality.report import Drawing
from bottlegan.quality.run_board import list_board, list_states, read_stains, tell_state
from bottlegan.quality.run_report import read_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two rounds: a trains, b was left out, c has no labels, d has only joined, e is removed."""
    (tmp_path / CONFIG).write_text("{}")
    clients = {name: Member(labeled=name != "c", unlabeled=2, test=3, verdict="good") for name in "abc"}
    write_members(tmp_path, Members(clients={**clients, "d": Member(labeled=1, unlabeled=1, test=0)}, removed=("e",)))
    rounds = tuple(
        RoundRecord(
            number=number,
            trained=("a", "b")[: 3 - number],
            left_out={"b": "too long"} if number == 2 else {},
            loss={"a": 1.0},
            scores={},
            each={},
        )
        for number in (1, 2)
    )
    write_document(tmp_path / HISTORY, History(rounds=rounds))
    (tmp_path / LOG).write_text('{"kind": "begun", "rounds": 9}\n')
    weights = read_weights(PRIOR)
    size = weights.document.model.code_size
    codes = {name: np.full(size, value, np.float32) for name, value in zip("abc", (0.0, 0.1, 1.0), strict=True)}
    write_weights(weights.with_styles(codes), tmp_path / STYLES)
    return tmp_path


def test_each_lab_has_a_state(run: Path) -> None:
    found = read_run(run)
    assert {name: tell_state(found, name) for name in "abcd"} == {
        "a": "trained in round 2",
        "b": "left out of round 2",
        "c": "sent its style; has no labels",
        "d": "joined",
    }
    (first, last) = found.history.rounds
    suspected = replace(found, history=History(rounds=(first, replace(last, suspects={"a": "pulls against others"}))))
    assert tell_state(suspected, "a") == "suspected in round 2"
    (run / LOG).write_text('{"kind": "waiting", "clients": ["a"]}\n')
    assert tell_state(read_run(run), "a") == "waited for"


def test_the_table_of_labs_shows_stains_and_neighbors(run: Path) -> None:
    stains = read_stains(run)
    table = list_states(read_run(run), stains)
    assert table.columns[:4] == ("lab", "stain", "state", "stains most like")
    rows = {row[0]: row for row in table.rows}
    assert rows["a"][1].startswith("<svg")
    assert rows["a"][3] == "b, 0.10"
    assert rows["c"][3] == "b, 0.90"
    assert rows["d"][1] == ""
    assert rows["e"][2] == "removed"
    assert {len(row) for row in table.rows} == {len(table.columns)}


def test_a_board_has_curves_labs_map_and_log(run: Path) -> None:
    sections = list_board(read_run(run), read_stains(run))
    assert [each.title for each in sections] == [
        "Over the rounds",
        "Labs",
        "Map of the labs' styles",
        "Rounds",
        "Left out",
    ]
    drawn = sections[2]
    assert isinstance(drawn, Drawing)
    assert drawn.svg.count("#d9541e") == 1  # the lab that was left out


def test_a_run_that_has_just_begun_has_a_board(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text('{"kind": "begun", "rounds": 9}\n')
    assert read_stains(tmp_path) == []
    assert list_board(read_run(tmp_path), []) == []
