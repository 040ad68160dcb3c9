import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bottlegan.cli.main import app
from bottlegan.core.errors import InputError
from bottlegan.core.state import write_document
from bottlegan.federated.server.folder import CONFIG, HISTORY, LOG
from bottlegan.federated.server.history import History, RoundRecord, Standing
from bottlegan.federated.server.members import Member, Members, write_members
from bottlegan.quality.run_report import (
    list_class_scores,
    list_labs,
    list_left_out,
    list_rounds,
    list_standing,
    list_tables,
    read_run,
    write_run_report,
)


def record(number: int, scored: bool, **more: dict[str, str]) -> RoundRecord:
    each = {"a": {"iou": 0.4, "ece": 0.1, "nll": 0.5}, "b": {"iou": 0.2, "ece": 0.2, "nll": 0.7}}
    return RoundRecord(
        number=number,
        trained=("a", "b"),
        left_out=more.get("left_out", {}),
        loss={"a": 1.0 / number, "b": 3.0 / number},
        scores={"iou": 0.3, "ece": 0.15, "nll": 0.6} if scored else {},
        each=each if scored else {},
        unscored=more.get("unscored", {}),
    )


def tell(folder: Path, *events: dict[str, object]) -> None:
    (folder / LOG).write_text("".join(json.dumps({"time": 1.0, **event}) + "\n" for event in events))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a running federation whose log has an unfinished line."""
    (tmp_path / CONFIG).write_text("{}")
    write_members(tmp_path, Members(clients={n: Member(labeled=1, unlabeled=2, test=3, verdict="good") for n in "ab"}))
    rounds = (record(1, False, left_out={"c": "<b>killed</b>"}), record(2, True), record(3, False))
    write_document(tmp_path / HISTORY, History(rounds=rounds))
    tell(
        tmp_path,
        {"kind": "begun", "version": "1", "rounds": 9},
        {"kind": "left out", "client": "d", "reason": "join ended with ImageError"},
    )
    with (tmp_path / LOG).open("a") as log:
        log.write('{"time": 2.0, "ki')
    return tmp_path


def test_a_run_is_told_while_it_goes_on(run: Path) -> None:
    found = read_run(run)
    assert found.status == "Running, or killed: 3 of 9 rounds so far."
    table = list_rounds(found)
    assert table.columns == ("round", "trained", "left out", "loss", "IOU", "ECE", "NLL", "median lab")
    assert table.rows == [
        ("2", "2", "0", "1.000", "0.300", "0.150", "0.600", "0.300"),
        ("3", "2", "0", "0.667", "-", "-", "-", "-"),
    ]
    assert [row[0] for row in list_labs(found).rows] == ["b", "a"]
    assert list_labs(found).rows[1] == ("a", "1 / 2 / 3", "good", "3", "0.333", "0.400", "0.100", "0.500")
    assert list_left_out(found).rows == [
        ("d", "joining", "join ended with ImageError"),
        ("c", "round 1", "<b>killed</b>"),
    ]


def test_scores_of_classes_have_a_table_of_their_own(run: Path) -> None:
    assert "Classes" not in [table.title for table in list_tables(read_run(run))]
    scores = {"iou": 0.3, "dice": 0.4, "iou/gland": 0.1, "dice/gland": 0.2, "iou/glass": 0.5, "ece": 0.1}
    scored = replace(record(1, True), scores=scores)
    write_document(run / HISTORY, History(rounds=(scored,)))
    found = read_run(run)
    assert list_rounds(found).columns[4:-1] == list_labs(found).columns[5:] == ("IOU", "Dice", "ECE")
    assert list_class_scores(found).columns == ("class", "IOU", "Dice")
    assert list_class_scores(found).rows == [("gland", "0.100", "0.200"), ("glass", "0.500", "-")]
    assert [table.title for table in list_tables(found)] == ["Rounds", "Classes", "Labs", "Left out"]


def test_all_scores_of_any_task_fit_into_80_columns(run: Path) -> None:
    scores = dict.fromkeys(("accuracy", "balanced_accuracy", "auroc", "ece", "nll"), 0.987654)
    scored = replace(record(1, True), scores=scores, each={"a": scores, "b": scores})
    write_document(run / HISTORY, History(rounds=(scored,)))
    found = CliRunner().invoke(app, ["info", str(run)], env={"COLUMNS": "80"}).output
    assert found.count("0.988") == 3 * len(scores) + 1  # of a round, of two labs, and of the median lab
    assert "…" not in found


def test_the_page_has_curves_of_the_scores_and_of_the_loss_for_each_lab(run: Path) -> None:
    page = write_run_report(read_run(run)).read_text()
    assert page.count("<polyline") == 4 * 3, "three scores and the loss, of all labs and of two"
    assert "&lt;b&gt;killed&lt;/b&gt;" in page
    assert "<b>killed" not in page, "what a client says is text"
    assert "http" not in page.replace("http://www.w3.org/2000/svg", ""), "it must open without a network"


def test_it_says_who_pulls_against_the_others(run: Path) -> None:
    standing = {"a": Standing(cosine=0.5, length=1.0), "b": Standing(cosine=-0.25, length=3.0)}
    rounds = tuple(
        replace(record(k, False), standing=standing, suspects={"b": "it points away"} if k > 1 else {})
        for k in (1, 2, 3)
    )
    write_document(run / HISTORY, History(rounds=rounds))
    assert list_standing(read_run(run)).rows == [
        ("b", "2 of 3", "-0.25", "3.0", "it points away"),
        ("a", "0 of 3", "0.50", "1.0", "-"),
    ]
    assert "it points away" in write_run_report(read_run(run)).read_text()


def test_many_labs_have_one_curve(run: Path) -> None:
    many = {f"lab-{k}": 1.0 for k in range(30)}
    only = RoundRecord(number=1, trained=tuple(many), left_out={}, loss=many)
    write_document(run / HISTORY, History(rounds=(only,)))
    assert write_run_report(read_run(run)).read_text().count("<polyline") == 1


@pytest.mark.parametrize(
    ("event", "status"),
    [
        ({"kind": "finished"}, "Finished after 3 rounds."),
        ({"kind": "failed", "error": "FederationError", "text": "too few"}, "Failed after 3 of 9 rounds: too few"),
        ({"kind": "failed", "error": "KeyboardInterrupt", "text": ""}, "Failed after 3 of 9 rounds: KeyboardInterrupt"),
    ],
)
def test_the_end_of_a_run_is_told(event: dict[str, object], status: str, run: Path) -> None:
    tell(run, {"kind": "begun", "rounds": 9}, event)
    assert read_run(run).status == status


def test_a_run_before_its_first_round_has_a_page_too(run: Path) -> None:
    (run / HISTORY).unlink()
    assert "0 of 9 rounds" in write_run_report(read_run(run)).read_text()


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not the folder of a federation"):
        read_run(tmp_path)
