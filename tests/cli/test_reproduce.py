import sys
from pathlib import Path

import pytest

from bottlegan.cli import main as cli


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    """Run the command line in this process and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["bottlegan", "reproduce", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def test_help_shows_an_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--help") == 0
    assert "Example: bottlegan reproduce table2 --out results" in capsys.readouterr().out


@pytest.mark.parametrize("result", ["table2", "figure2"])
def test_missing_data_is_one_line_and_status_2(
    result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BOTTLEGAN_PESO", raising=False)
    assert run(monkeypatch, result, "--out", "results") == 2
    assert "bottlegan: there are no PESO patches" in capsys.readouterr().err
    assert run(monkeypatch, result, "--out", "results", "--data", "nowhere") == 2
    assert "nowhere: holds no PESO patches" in capsys.readouterr().err


def test_an_unknown_result_is_status_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "table3", "--out", tmp_path) == 2
