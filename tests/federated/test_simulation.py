import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bottlegan.cli import main as cli
from bottlegan.core.config import load, to_json, to_toml
from bottlegan.core.errors import ConfigError, InputError, MissingError
from bottlegan.core.progress import Silent
from bottlegan.data.patches import list_patches
from bottlegan.federated.client.holdings import LabConfig, find_labs
from bottlegan.federated.server.config import FederationConfig
from bottlegan.federated.simulation import LabsConfig, SimulationConfig, draw_labs, prepare_labs
from bottlegan.imaging.files import read_mask
from bottlegan.models.network_file import load_network
from bottlegan.models.weights import read_document

CONFIGS = Path(__file__).parents[2] / "configs"
CONFIG = """
[labs]
count = 2
train = 1
test = 1
size = 64
windows = 2
window_size = 64
reference_patches = 1
[phase2]
mode = "plain"
rounds = 2
network = { arguments = { width = 4, depth = 1 } }
training = { steps = 1, batch = 1, crop = 32 }
[rounds]
deadline = 0.2
"""


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["bottlegan", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def simulate(monkeypatch: pytest.MonkeyPatch, config: Path, out: Path, *more: str) -> int:
    return run(monkeypatch, "simulate", config, "--out", out, "--engine", "local", *more)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "simulate.toml"
    path.write_text(CONFIG)
    return path


def test_a_simulation_ends_by_naming_what_it_wrote(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert simulate(monkeypatch, config, out) == 0
    said = capsys.readouterr().out
    assert "client    IOU   Dice    ECE    NLL\nlab-01" in said
    for name in ("network.safetensors", "history.json", "scores.txt"):
        assert str(out / name) in said
        assert (out / name).exists()
    built, _ = load_network(out / "network.safetensors")
    assert built.network.config.width == 4
    before = {path: path.read_bytes() for path in out.glob("*.safetensors")}

    assert run(monkeypatch, "info", out) == 0
    said = capsys.readouterr().out
    assert "Finished after 2 rounds." in said
    assert "lab-01" in said
    assert (out / "report.html").exists()
    assert simulate(monkeypatch, config, out) == 2
    assert "holds a run already; give --resume" in capsys.readouterr().err
    assert simulate(monkeypatch, config, out, "--resume") == 0
    config.write_text(CONFIG.replace("rounds = 2", "rounds = 3"))
    assert simulate(monkeypatch, config, out, "--resume") == 2
    assert "another configuration" in capsys.readouterr().err
    config.write_text(CONFIG.replace("train = 1", "train = 2"))
    assert simulate(monkeypatch, config, out, "--resume") == 2
    assert "holds other labs" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in out.glob("*.safetensors")} == before


def test_labs_in_folders_are_simulated_under_their_names(
    labs: dict[str, Path], config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = CONFIG.split("[phase2]")[1]
    config.write_text(f'[labs]\nfolder = "labs"\nreference = "reference"\n[phase2]{text}'.replace("plain", "normalize"))
    out = tmp_path / "run"
    assert simulate(monkeypatch, config, out) == 0
    assert read_document(out / "styles.safetensors").styles == tuple(sorted(labs))


def test_more_labs_than_there_are_end_at_once_with_one_line_and_status_2(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CONFIG.replace("[rounds]", "[rounds]\nleast = 3"))
    assert simulate(monkeypatch, config, tmp_path / "run") == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1] == (
        "bottlegan: rounds: 3 clients must reply in each round, but there are 2; lower rounds.least, or add labs"
    )
    assert not (tmp_path / "run" / "federation.json").exists()
    assert "Traceback" not in "".join(lines)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("mode", "mod"), "unknown key `phase2.mod`"),
        (("rounds = 2", "rounds = 0"), "rounds and local_rounds must be at least 1"),
        (("window_size = 64", "window_size = 65"), "a window of 65 px is larger than a patch of 64 px"),
        (("[labs]", "[labs]\nfolder = 'nowhere'"), "nowhere: there is no such folder"),
    ],
)
def test_a_wrong_configuration_is_explained_in_one_line(
    change: tuple[str, str],
    message: str,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config.write_text(CONFIG.replace(*change))
    assert simulate(monkeypatch, config, tmp_path / "run") == 2
    assert message in capsys.readouterr().err


def test_help_has_an_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "simulate", "--help") == 0
    assert "bottlegan simulate configs/simulate.toml --out run" in capsys.readouterr().out


def test_the_configurations_that_are_shipped_are_valid() -> None:
    config = load(SimulationConfig, CONFIGS / "simulate.toml")
    assert config.federation == FederationConfig(
        phase2=config.phase2, strategy=config.strategy, rounds=config.rounds, phase1=config.phase1
    )
    assert load(LabConfig, CONFIGS / "lab.toml").labeled == Path("labeled")


def test_drawn_labs_hold_what_was_asked_for(drawn: Path) -> None:
    labs = find_labs(drawn / "labs")
    configs = {name: load(LabConfig, path) for name, path in labs.items()}
    assert list(labs) == ["lab-01", "lab-02", "lab-03"]
    assert sum(config.labeled is not None for config in configs.values()) == 2
    assert len(list_patches(drawn / "reference")) == 3
    colors = []
    for name, path in labs.items():
        images = list_patches(path.parent / "images")
        assert len(images) == 2
        assert all(patch.mask is None for patch in images)
        assert (path.parent / configs[name].reference).resolve() == (drawn / "reference").resolve()  # type: ignore[operator]
        for patch in list_patches(path.parent / "test"):
            assert patch.mask is not None
            assert read_mask(patch.mask).shape == patch.read_image().shape[:2] == (96, 96)
        if configs[name].labeled is not None:
            for patch in list_patches(path.parent / "labeled"):
                assert patch.mask is not None
                assert read_mask(patch.mask).shape == (64, 64)
        colors.append(tuple(images[0].read_image().mean(axis=(0, 1)).round().tolist()))
    assert len(set(colors)) == 3


def test_a_labeled_window_is_part_of_an_image_of_its_lab(drawn: Path) -> None:
    for labeled in drawn.glob("labs/*/labeled"):
        images = [patch.read_image() for patch in list_patches(labeled.parent / "images")]
        for patch in list_patches(labeled):
            window = patch.read_image()
            views = [
                np.lib.stride_tricks.sliding_window_view(image, window.shape, axis=(0, 1, 2))[:, :, 0]
                for image in images
            ]
            assert any((view == window).all(axis=(2, 3, 4)).any() for view in views)


def test_drawing_depends_on_the_seed_alone_and_is_done_once(tmp_path: Path) -> None:
    config = LabsConfig(count=2, train=1, test=1, size=64, labeled=1, windows=1, window_size=32, reference_patches=1)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        draw_labs(config, seed, tmp_path / name, Silent())
    contents = [
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.png")}
        for name in "abc"
    ]
    assert contents[0] == contents[1]
    assert contents[0] != contents[2]
    (tmp_path / "a" / "reference").rename(tmp_path / "a" / "moved")
    draw_labs(config, 0, tmp_path / "a", Silent())
    assert not (tmp_path / "a" / "reference").exists()
    with pytest.raises(InputError, match="holds other labs"):
        draw_labs(replace(config, train=2), 0, tmp_path / "a", Silent())


def test_labs_are_prepared_beside_their_document(labs: dict[str, Path], tmp_path: Path) -> None:
    config = SimulationConfig(labs=LabsConfig(folder=Path("labs"), reference=Path("reference")))
    path = tmp_path / "any.toml"
    found, reference = prepare_labs(path, config, tmp_path / "out")
    assert found == labs
    assert len(reference) == 3
    assert prepare_labs(path, replace(config, labs=LabsConfig(folder=Path("labs"))), tmp_path / "out")[1] == []
    assert not (tmp_path / "out").exists()
    with pytest.raises(MissingError, match="holds no lab; give each a sub-folder"):
        find_labs(tmp_path)


def test_a_simulation_is_a_document(tmp_path: Path) -> None:
    config = SimulationConfig(seed=4, labs=LabsConfig(count=9))
    (tmp_path / "c.toml").write_text(to_toml(config))
    assert load(SimulationConfig, tmp_path / "c.toml") == config
    assert '"labs":' not in to_json(config.federation)
    with pytest.raises(ConfigError, match="unknown key"):
        load(FederationConfig, tmp_path / "c.toml")
