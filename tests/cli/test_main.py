import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bottlegan import __version__
from bottlegan.cli import main as cli
from bottlegan.imaging.files import write_image

PICTURE = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    """Run the command line in this process and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["bottlegan", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def two_folders(root: Path) -> tuple[Path, Path]:
    for name in ("out", "truth"):
        (root / name).mkdir()
        for patch in "ab":
            write_image(root / name / f"{patch}.png", PICTURE)
    return root / "out", root / "truth"


def test_evaluate_prints_a_table_and_writes_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, truth = two_folders(tmp_path)
    assert run(monkeypatch, "evaluate", output, truth, "--json", tmp_path / "scores.json") == 0
    printed = capsys.readouterr().out
    assert "MSE" in printed
    assert "not comparable" in printed
    assert json.loads((tmp_path / "scores.json").read_text())["summary"]["mse"]["mean"] == 0


def test_bad_input_is_one_line_and_status_2_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, truth = two_folders(tmp_path)
    (output / "a.png").write_bytes((output / "a.png").read_bytes()[:60])
    assert run(monkeypatch, "evaluate", output, truth, "--json", tmp_path / "scores.json") == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("bottlegan: ")]
    assert len(lines) == 1
    assert str(output / "a.png") in lines[0]
    assert not (tmp_path / "scores.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "nowhere", "nowhere"], "nowhere: there is no such folder"),
        (["evaluate", ".", "."], "holds no image"),
        (["demo", "--config", "gone.toml"], "gone.toml: there is no such file"),
        (["demo", "--config", "wrong.toml"], "unknown key `extra`"),
        (["demo", "--out", "wrong.toml/inside"], "wrong.toml/inside: cannot be made a folder"),
    ],
)
def test_each_wrong_argument_is_named(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.toml").write_text("extra = 2\n")
    assert run(monkeypatch, *words) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.toml"]


@pytest.mark.parametrize("words", [["no-such-command"], ["evaluate"], ["demo", "--no-such-option"]])
def test_bad_usage_is_status_2(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, *words) == 2


def test_a_fault_of_ours_is_status_1(tmp_path: Path) -> None:
    code = (
        "import sys, bottlegan.quality.evaluate as e, bottlegan.cli.main as m\n"
        "e.evaluate_folders = lambda *_: 1 / 0\n"
        "sys.argv = ['bottlegan', 'evaluate', '.', '.']\n"
        "m.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize(
    "command", ["demo", "drift", "evaluate", "info", "lut", "normalize", "onboard", "restain", "train", "train-prior"]
)
def test_help_shows_an_example(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, command, "--help") == 0
    assert f"Example: bottlegan {command}" in capsys.readouterr().out


def test_the_installed_command_starts_without_torch() -> None:
    code = "import sys, bottlegan.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    command = Path(sys.executable).with_name("bottlegan")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"bottlegan {__version__}\n"


def test_demo_takes_a_config_and_a_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.toml").write_text("labs = 2\npatches = 2\nreference = 3\nsize = 96\nrounds = 1\n")
    out = tmp_path / "deep" / "demo"
    assert run(monkeypatch, "demo", "--out", out, "--config", tmp_path / "tiny.toml", "--seed", "5") == 0
    assert "report.html" in capsys.readouterr().out
    assert json.loads((out / "metrics.json").read_text())["config"]["seed"] == 5
