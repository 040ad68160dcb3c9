import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
import typer

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
        (["evaluate", "nowhere", "nowhere"], "nowhere: there is no such file or folder"),
        (["evaluate", ".", "."], "holds no image"),
        (["demo", "--config", "gone.toml"], "gone.toml: there is no such file"),
        (["demo", "--config", "wrong.toml"], "unknown key `extra`"),
        (["demo", "--out", "wrong.toml/inside"], "wrong.toml/inside: cannot be created"),
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


def test_bad_usage_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "normalize", "a", "b", "--level", "x") == 2
    assert capsys.readouterr().err == (
        "bottlegan: Invalid value for '--level': 'x' is not a valid integer range; see bottlegan normalize --help\n"
    )


@pytest.mark.parametrize(
    ("error", "message"), [(MemoryError(), "not enough memory"), (PermissionError(13, "Denied", "f"), "f: ")]
)
def test_what_the_machine_lacks_is_one_line(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    assert run(monkeypatch, "info") == 2
    assert capsys.readouterr().err.startswith(
        f"bottlegan: {message}" if message == "f: " else "bottlegan: there is not"
    )


def test_every_argument_and_option_says_what_it_is() -> None:
    def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Parameter]]:
        for name, child in getattr(command, "commands", {}).items():
            if not child.hidden:
                yield from walk(child, f"{path} {name}")
        for parameter in command.params:
            yield f"{path} {parameter.name}", parameter

    missing = [
        where for where, each in walk(typer.main.get_command(cli.app), "bottlegan") if not getattr(each, "help", "")
    ]
    assert not missing


def test_a_terminated_command_removes_what_it_has_begun(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, bottlegan.quality.evaluate as e, bottlegan.cli.main as m\n"
        "from pathlib import Path\n"
        "from bottlegan.core.files import replacing\n"
        "def work(*_):\n"
        "    with replacing(Path('out.txt')) as temporary:\n"
        "        temporary.write_text('half')\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "e.evaluate_folders = work\n"
        "sys.argv = ['bottlegan', 'evaluate', '.', '.']\n"
        "m.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 143
    assert not list(tmp_path.iterdir())


def test_a_terminal_without_our_characters_shows_others(tmp_path: Path) -> None:
    output, truth = two_folders(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "bottlegan.cli.main", "evaluate", output, truth],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )
    assert done.returncode == 0, done.stderr
    assert b"color difference, ?E" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_that_finds_no_room_is_one_line(tmp_path: Path) -> None:
    for words in (["--help"], ["evaluate", *two_folders(tmp_path)]):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "bottlegan.cli.main", *words], stdout=full, stderr=subprocess.PIPE, check=False
            )
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith(
            b"bottlegan: the output cannot be written (No space left on device)"
        )
        assert b"Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no broken pipes")
def test_a_reader_that_stops_reading_is_no_fault() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "bottlegan.cli.main", "--help"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


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
