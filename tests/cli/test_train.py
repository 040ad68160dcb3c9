import sys
from pathlib import Path

import numpy as np
import pytest

from bottlegan.cli import main as cli
from bottlegan.imaging.files import read_image, write_image
from bottlegan.imaging.tensors import from_batch
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES, REFERENCE, Style

CONFIG = """
steps = 40
warm_steps = 40
batch = 4
pixels = 128
crop = 32
check_every = 20
[model]
code_size = 8
generator = { width = 8, depth = 1, mapping = 8 }
"""


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["bottlegan", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def fill(folder: Path, style: Style, indices: range) -> None:
    folder.mkdir(parents=True)
    for index in indices:
        levels = from_batch(render(draw_tissue(8, index, 96).concentration[None], style))[0]
        write_image(folder / f"{index}.png", levels)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with labs, a reference set, and a model trained on them by the command line."""
    root = tmp_path_factory.mktemp("trained")
    fill(root / "reference", REFERENCE, range(4))
    for k, name in ((4, "dark"), (2, "pale")):
        fill(root / "labs" / name, LABORATORIES[k], range(10 * k, 10 * k + 2))
    (root / "tiny.toml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        words = ("--reference", root / "reference", "--config", root / "tiny.toml", "--out", root / "m.safetensors")
        assert run(patch, "train", root / "labs", *words) == 0
    return root


def test_training_leaves_a_model_and_its_log(trained: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    assert {"m.safetensors", "m.jsonl"} <= names
    assert "m.checkpoint" not in names
    assert len((trained / "m.jsonl").read_text().splitlines()) == 2


def test_a_folder_is_normalized_and_taken_on_to_another_style(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ("--model", trained / "m.safetensors")
    dark = trained / "labs" / "dark"
    assert run(monkeypatch, "normalize", dark, tmp_path / "n", *model, "--style", "dark") == 0
    assert run(monkeypatch, "restain", tmp_path / "n", tmp_path / "r", *model, "--style", "pale") == 0
    assert run(monkeypatch, "normalize", dark, tmp_path / "t", *model, "--style", "dark", "--to", "pale") == 0
    start, normalized, restained, through = (
        np.stack([read_image(path) for path in sorted(folder.iterdir())]).astype(int)
        for folder in (dark, tmp_path / "n", tmp_path / "r", tmp_path / "t")
    )
    assert np.abs(normalized - start).mean() > 3
    # Writing rounds to levels in between; otherwise both ways are the same.
    assert np.abs(restained - through).mean() < 2


def test_one_image_is_normalized(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = next((trained / "labs" / "pale").iterdir())
    words = ("--model", trained / "m.safetensors", "--style", "pale")
    assert run(monkeypatch, "normalize", image, tmp_path / "out.png", *words) == 0
    assert read_image(tmp_path / "out.png").shape == (96, 96, 3)


def test_an_unknown_style_lists_the_known_ones(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--model", trained / "m.safetensors", "--style", "blue")
    assert run(monkeypatch, "restain", trained / "reference", tmp_path / "out", *words) == 2
    assert "dark, pale" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--out": "model.pt"}, "must end in .safetensors"),
        ({"--reference": "nowhere"}, "nowhere: there is no such file or folder"),
        ({"LABS": "reference"}, "holds no sub-folder"),
    ],
)
def test_wrong_arguments_are_named(
    change: dict[str, str],
    message: str,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(trained)
    words = {"LABS": "labs", "--reference": "reference", "--out": "other.safetensors", **change}
    options = [word for key, value in words.items() if key != "LABS" for word in (key, value)]
    assert run(monkeypatch, "train", words["LABS"], *options) == 2
    assert message in capsys.readouterr().err
    assert not Path("other.safetensors").exists()


def test_each_image_can_be_a_lab(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--reference", trained / "reference", "--config", trained / "tiny.toml", "--style-per-image")
    assert run(monkeypatch, "train", trained / "labs" / "dark", *words, "--out", tmp_path / "m.safetensors") == 0
    words = ("--model", tmp_path / "m.safetensors", "--style", "40")
    assert run(monkeypatch, "normalize", trained / "labs" / "dark" / "40.png", tmp_path / "o.png", *words) == 0
