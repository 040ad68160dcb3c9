import json
from pathlib import Path

import pytest

from bottlegan.core.progress import EventLog, Progress, Silent


def test_silent_yields_everything() -> None:
    progress: Progress = Silent()
    progress.event("start")
    assert list(progress.track([1, 2, 3], "counting")) == [1, 2, 3]


def test_the_log_holds_one_object_a_line_and_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for loss in (0.5, 0.25):
        with EventLog(path) as log:
            log.event("step", loss=loss)
            assert path.read_text().endswith("\n"), "an event must be on disk at once"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(record["kind"], record["loss"]) for record in records] == [("step", 0.5), ("step", 0.25)]
    assert records[0]["time"] > 1e9


def test_what_json_cannot_hold_is_an_error(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log, pytest.raises(ValueError, match="JSON"):
        log.event("step", loss=float("nan"))
