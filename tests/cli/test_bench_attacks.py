import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bottlegan.bench.attacks import campaign
from bottlegan.bench.attacks.row import Row
from bottlegan.cli.main import app


@pytest.mark.parametrize(("held", "status"), [(True, 0), (False, 1)])
def test_the_table_says_what_held_and_so_does_the_status(
    held: bool, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row("replay", "a stale reply", held, "refused [by name]", {"count": 3})
    monkeypatch.setattr(campaign, "list_attacks", lambda *counts, compare: {"replay": lambda folder, progress: [row]})
    words = ["bench", "attacks", "--out", str(tmp_path / "out"), "--json", str(tmp_path / "found.json")]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == status
    assert ("NO" in found.output) != held
    assert "refused [by name]" in found.output, "what others say is no markup"
    assert json.loads((tmp_path / "found.json").read_text())[0]["count"] == 3
