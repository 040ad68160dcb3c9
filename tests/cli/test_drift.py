import json
import sys
from pathlib import Path

import numpy as np
import pytest

from bottlegan.cli import main as cli
from bottlegan.imaging.files import write_image
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.document import PRIOR
from bottlegan.models.files import save_model
from bottlegan.models.paradigms import BottleGAN
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["bottlegan", "drift", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and four batches, the last of which shows a quarter of the stain of the others."""
    folder = tmp_path_factory.mktemp("drift")
    save_model(BottleGAN.load(PRIOR), folder / "m.safetensors")
    for k, strength in enumerate((1.0, 1.0, 1.0, 0.25)):
        batch = folder / "batches" / f"2026-0{k + 1}"
        batch.mkdir(parents=True)
        levels = from_batch(render(strength * draw_tissue(1, 0, 96).concentration[None], LABORATORIES[5]))[0]
        # All batches show one control slide; each is a little noisy.
        noise = np.random.default_rng(k).integers(-2, 3, levels.shape)
        write_image(batch / "a.png", (levels.astype(int) + noise).clip(0, 255).astype(np.uint8))
    return folder


def test_drift_is_said_clearly_with_status_0(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (root / "batches", "--style", "our [lab]", "--model", root / "m.safetensors", "--out", tmp_path / "out")
    assert run(monkeypatch, *words, "--baseline", "3") == 0
    printed = capsys.readouterr()
    assert "Drift found: 1 of 4 batches out of control (2026-04)." in printed.out
    assert "our [lab]" in printed.out
    assert "fitting batches" in printed.err
    assert json.loads((tmp_path / "out" / "drift.json").read_text())["drifted"] == ["2026-04"]


def test_one_batch_has_no_limit_and_gives_the_same_files_each_time(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "2026-01").symlink_to(root / "batches" / "2026-01")
    words = (tmp_path / "one", "--style", "x", "--model", root / "m.safetensors")
    for out in "ab":
        assert run(monkeypatch, *words, "--out", tmp_path / out) == 0
    assert "Distances only" in capsys.readouterr().out
    for name in ("drift.html", "drift.csv", "drift.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"FOLDER": "nowhere"}, "nowhere: there is no such file or folder"),
        ({"FOLDER": "batches/2026-01"}, "holds no sub-folder; make one for each batch"),
        ({"FOLDER": "."}, "holds no image"),
        ({"--model": "gone.safetensors"}, "gone.safetensors: there is no such file"),
        ({"--style": ""}, "a style cannot be called"),
        ({"--baseline": "0"}, "--baseline"),
    ],
)
def test_wrong_arguments_are_named(
    change: dict[str, str],
    message: str,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(root)
    words = {"FOLDER": "batches", "--model": "m.safetensors", "--style": "lab", "--out": "out", **change}
    options = [word for key, value in words.items() if key != "FOLDER" for word in (key, value)]
    assert run(monkeypatch, words["FOLDER"], *options) == 2
    assert message in capsys.readouterr().err
    assert not Path("out").exists()


def test_help_shows_an_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--help") == 0
    assert "Example: bottlegan drift" in capsys.readouterr().out
