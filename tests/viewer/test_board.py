"""A federation and a lab's drift in the browser, updated whenever their files change."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bottlegan.core.errors import BottleGANError
from bottlegan.core.state import write_document
from bottlegan.federated.server.folder import CONFIG, HISTORY, LOG, STYLES
from bottlegan.federated.server.history import History, RoundRecord
from bottlegan.federated.server.members import Member, Members, write_members
from bottlegan.models.weights import read_weights
from bottlegan.onboarding.verdict import Verdict
from bottlegan.quality.drift import STEPS, Batch, Drift, Limit, Point
from bottlegan.quality.drift_report import write_drift
from bottlegan.viewer.board import Board, Page, follow_drift, follow_run, list_routes
from bottlegan.viewer.server import make_app, serving

Axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe
Show = Callable[..., Any]
HOSTILE = "<img src=x onerror=alert(1)>"


def write_rounds(folder: Path, names: list[str], count: int) -> None:
    rounds = tuple(
        RoundRecord(
            number=number,
            trained=tuple(names),
            left_out={HOSTILE: "its update was 40 times longer than the median"} if number == 1 else {},
            loss=dict.fromkeys(names, 1 / number),
            scores={"iou": 0.1 * number},
            each={name: {"iou": 0.1 * number} for name in names},
        )
        for number in range(1, count + 1)
    )
    write_document(folder / HISTORY, History(rounds=rounds))


@pytest.fixture
def run(model: Path, tmp_path: Path) -> Path:
    """A run of the two labs that the model knows, after two of five rounds."""
    names = list(read_weights(model).document.styles)
    (tmp_path / CONFIG).write_text("{}")
    (tmp_path / LOG).write_text(json.dumps({"time": 1.0, "kind": "begun", "rounds": 5}) + "\n")
    write_members(
        tmp_path, Members(clients={name: Member(labeled=1, unlabeled=2, test=3, verdict="good") for name in names})
    )
    write_rounds(tmp_path, names, 2)
    shutil.copy(model, tmp_path / STYLES)
    return tmp_path


@pytest.fixture
def drift(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    points = [
        Point(
            Batch(f"2026-0{number}", 8, Verdict.GOOD, "fine", torch.from_numpy(random.normal(size=24))),
            number < 4,
            0.1 * number,
            0.3 * number,
            number == 5,
            random.integers(0, 256, (STEPS, STEPS, 3), np.uint8),
        )
        for number in range(1, 6)
    ]
    found = Drift("our lab", False, points, Limit(0.2, 0.45), random.integers(0, 256, (STEPS, STEPS, 3), np.uint8))
    write_drift(found, tmp_path)
    return tmp_path


def serve(board: Board) -> Any:
    return serving(make_app("board.html", list_routes(board)))


def test_files_are_read_again_when_they_change_and_not_before(tmp_path: Path) -> None:
    file, reads = tmp_path / "a", list[int]()

    def read() -> Page:
        reads.append(1)
        return Page("a", "b", "", None, [])

    board = Board([file], read)
    assert board.tell()["version"] == 1
    assert board.tell()["version"] == 1
    file.write_text("x")
    assert board.tell()["version"] == 2
    assert len(reads) == 2


def test_what_is_no_run_and_no_drift_is_refused(tmp_path: Path) -> None:
    for follow in (follow_run, follow_drift):
        with pytest.raises(BottleGANError):
            follow(tmp_path)


def test_a_run_is_shown_live(run: Path, show: Show) -> None:
    with serve(follow_run(run)) as url, show(url) as screen:
        page = screen.page
        page.wait_for_selector("body[data-state=settled]")
        assert "2 of 5 rounds" in page.locator("#lead").inner_text()
        assert page.locator("#share").evaluate("(bar) => bar.value") == pytest.approx(0.4)
        assert page.locator("h2").all_inner_texts() == [
            "Over the rounds",
            "Labs",
            "Map of the labs' styles",
            "Rounds",
            "Left out",
        ]
        assert page.locator("td svg").count() == 2
        assert HOSTILE in page.locator("#sections").inner_text()
        assert page.locator("#sections img").count() == 0
        write_rounds(run, ["lab-0"], 3)
        page.get_by_text("3 of 5 rounds").wait_for()
        assert "last trained in round 2" not in page.locator("#sections").inner_text()
        with (run / LOG).open("a") as log:
            log.write(json.dumps({"time": 2.0, "kind": "finished"}) + "\n")
        page.locator("#lead[data-verdict=good]").wait_for()


def test_drift_is_shown_in_the_same_dress(drift: Path, show: Show) -> None:
    with serve(follow_drift(drift)) as url, show(url) as screen:
        page = screen.page
        page.wait_for_selector("body[data-state=settled]")
        assert "Drift found: 1 of 5" in page.locator("#lead").inner_text()
        assert page.locator("strong").inner_text() == "out of control"
        assert page.locator("#sections .drawing svg").count() == 3


@pytest.fixture(params=["run", "drift"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    folder = request.getfixturevalue(request.param)
    with serve({"run": follow_run, "drift": follow_drift}[request.param](folder)) as url:
        yield url


@pytest.mark.parametrize("width", [1280, 320])
def test_boards_are_accessible_at_any_width(url: str, show: Show, width: int) -> None:
    with show(url, width=width, height=640) as screen:
        screen.page.wait_for_selector("body[data-state=settled]")
        found = Axe().run(screen.page).response["violations"]
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []
        assert screen.page.evaluate("() => document.documentElement.scrollWidth") <= width
