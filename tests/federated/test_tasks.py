"""Federations of any task and any network, end to end."""

import json
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bottlegan.cli import main as cli
from bottlegan.core.config import to_toml
from bottlegan.core.errors import MissingError
from bottlegan.core.task import Task
from bottlegan.federated.client.holdings import LAB_FILE, LabConfig
from bottlegan.federated.flower.simulation import run as run_flower
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.server.config import FederationConfig, RoundsConfig, StrategyConfig, flatten, unflatten
from bottlegan.federated.simulation import run_local
from bottlegan.imaging.files import Pixels, read_image, write_image, write_values
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.network_file import load_network
from bottlegan.models.networks import NetworkConfig
from bottlegan.predict.predictor import Predictor
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES, Style
from bottlegan.training.fixmatch import FixMatchConfig
from bottlegan.training.task import TrainingConfig

THREE = Task(classes=("glass", "stroma", "epithelium"), ignore=255, micrometers=1.0)
PATCHES = Task(kind="classification", classes=("little", "much"))
SIZE = 64
TISSUES = [draw_tissue(5, index, SIZE) for index in range(6)]
UNET = NetworkConfig(
    factory="monai.networks.nets:UNet",
    arguments={
        "spatial_dims": 2,
        "in_channels": 3,
        "out_channels": 3,
        "channels": [4, 8],
        "strides": [2],
        "norm": "batch",
    },
)


def show(index: int, style: Style) -> Pixels:
    return from_batch(render(TISSUES[index].concentration[None], style))[0]


def write_lab(folder: Path, style: Style, task: Task, **config: object) -> Path:
    """Write a lab with all patches: the first two for scoring, the others for training."""
    for index in range(len(TISSUES)):
        image, part = show(index, style), "test" if index < 2 else "labeled"
        (folder / "images").mkdir(parents=True, exist_ok=True)
        write_image(folder / "images" / f"{index}.png", image)
        epithelium = TISSUES[index].epithelium.numpy()
        if task.kind == "classification":
            # Every other one, so that each part has both kinds.
            below = folder / part / task.classes[index % 2]
            below.mkdir(parents=True, exist_ok=True)
            write_image(below / f"{index}.png", image)
        else:
            (folder / part).mkdir(parents=True, exist_ok=True)
            write_image(folder / part / f"{index}.png", image)
            glass = TISSUES[index].concentration.sum(0).numpy() < 0.12
            mask = np.where(glass, 0, 1 + epithelium).astype(np.uint8)
            mask[:4] = 255
            write_values(folder / part / f"{index}_mask.png", mask)
    said = LabConfig(images=(Path("images"),), labeled=Path("labeled"), test=Path("test"), **config)  # type: ignore[arg-type]
    (folder / LAB_FILE).write_text(to_toml(said))
    return folder / LAB_FILE


@pytest.fixture
def labs(tmp_path: Path) -> Callable[..., dict[str, Path]]:
    """Writes two labs for a task."""

    def write(task: Task, **config: object) -> dict[str, Path]:
        styles = {"dark": LABORATORIES[6], "pale": LABORATORIES[7]}
        return {name: write_lab(tmp_path / "labs" / name, style, task, **config) for name, style in styles.items()}

    return write


def plan(task: Task, network: NetworkConfig | None = None, **phase2: object) -> FederationConfig:
    config = Phase2Config(
        rounds=2,
        task=task,
        network=network or NetworkConfig(arguments={"width": 4, "depth": 2}),
        training=TrainingConfig(steps=2, batch=2, crop=32, learning_rate=0.01),
        **phase2,  # type: ignore[arg-type]
    )
    return FederationConfig(phase2=config, rounds=RoundsConfig(evaluate_every=1))


def test_three_classes_and_a_slide_of_the_lab_afterwards(labs: Callable[..., dict[str, Path]], tmp_path: Path) -> None:
    state = run_local(labs(THREE, classes=THREE.classes), plan(THREE), tmp_path / "run")
    last = state.history.rounds[-1]
    assert {"iou", "dice", "ece", "nll", "iou/epithelium", "dice/glass"} <= last.scores.keys()
    assert sorted(last.trained) == ["dark", "pale"]
    text = (tmp_path / "run" / "scores.txt").read_text()
    assert "client    IOU   Dice    ECE    NLL" in text
    assert "iou of epithelium" in text
    # The result is used unchanged.
    predictor = Predictor.load(tmp_path / "run" / "network.safetensors")
    found = predictor(read_image(tmp_path / "labs" / "dark" / "images" / "0.png"))
    assert found.probabilities.shape == (3, SIZE, SIZE)
    assert predictor.document.temperature == last.temperature
    members = json.loads((tmp_path / "run" / "clients.json").read_text())["clients"]
    assert sum(members["dark"]["classes"]) == 4 * (SIZE - 4) * SIZE  # without ignored pixels


def test_classes_of_patches_with_fixmatch_for_labs_without_labels(
    labs: Callable[..., dict[str, Path]], tmp_path: Path
) -> None:
    found = labs(PATCHES)
    # One lab has a table instead of folders, and a third one has no labels.
    pale = found["pale"].parent / "labeled"
    rows = []
    for name in PATCHES.classes:
        for file in sorted((pale / name).iterdir()):
            file.rename(pale / file.name)
            rows.append(f"{file.name},{name}")
        (pale / name).rmdir()
    (pale / "labels.csv").write_text("\n".join(["image,label", *rows]) + "\n")
    third = write_lab(tmp_path / "labs" / "third", LABORATORIES[5], PATCHES)
    third.write_text('images = ["images"]\n')
    config = plan(PATCHES, fixmatch=FixMatchConfig(enabled=True, warm_up=0.0, threshold=0.5))
    state = run_local({**found, "third": third}, config, tmp_path / "run")
    last = state.history.rounds[-1]
    assert last.trained == ("dark", "pale", "third")
    assert {"accuracy", "balanced_accuracy", "auroc", "ece", "nll"} == last.scores.keys()
    assert "accuracy  balanced  AUROC" in (tmp_path / "run" / "scores.txt").read_text()
    built, said = load_network(tmp_path / "run" / "network.safetensors")
    assert said.task == PATCHES
    assert built(torch.zeros(1, 3, 32, 32)).shape == (1, 2)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("strategy", ["fedavgm", "fedadam"])
def test_monais_network_with_batch_norm(
    labs: Callable[..., dict[str, Path]], tmp_path: Path, local: bool, strategy: str
) -> None:
    pytest.importorskip("monai", reason="needs pip install 'bottlegan[adapters]'")
    config = plan(THREE, UNET, mode="plain", local_normalization=local)
    config = replace(config, strategy=StrategyConfig(name=strategy, learning_rate=0.05))  # type: ignore[arg-type]
    found = labs(THREE, factories=(UNET.factory,))
    state = run_local(found, config, tmp_path / "run")
    variances = [tensor for name, tensor in state.weights.items() if name.endswith("running_var")]
    assert variances
    assert all((tensor > 0).all() for tensor in variances)
    built, _ = load_network(tmp_path / "run" / "network.safetensors", [UNET.factory])
    assert built(torch.zeros(1, 3, 33, 40)).shape == (1, 3, 33, 40)
    again = run_local(found, replace(config, seed=0), tmp_path / "run")
    assert again.finished == 2


def test_a_federation_can_start_from_a_file(labs: Callable[..., dict[str, Path]], tmp_path: Path) -> None:
    found = labs(THREE)
    run_local(found, plan(THREE, mode="plain"), tmp_path / "one")
    started = replace(plan(THREE, mode="plain"), start=tmp_path / "one" / "network.safetensors")
    one = run_local(found, started, tmp_path / "two").history.rounds[0].loss
    other = run_local(found, plan(THREE, mode="plain"), tmp_path / "three").history.rounds[0].loss
    assert one != other
    with pytest.raises(MissingError, match="no such network file"):
        run_local(found, replace(started, start=tmp_path / "none"), tmp_path / "four")


@pytest.mark.slow
# Ray leaves open pipes and stopped processes to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_three_classes_in_flowers_engine(labs: Callable[..., dict[str, Path]], tmp_path: Path) -> None:
    found, config = labs(THREE), plan(THREE)
    state = run_flower(found, config, tmp_path / "flower")
    local = run_local(found, config, tmp_path / "local")
    assert state.history.rounds[-1].scores == pytest.approx(local.history.rounds[-1].scores, abs=1e-4)


def test_settings_with_lists_pass_flowers_flat_configuration() -> None:
    config = plan(THREE, UNET)
    flat = flatten(config)
    assert all(isinstance(value, str | int | float | bool) for value in flat.values())
    assert unflatten(flat) == config


def simulate(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> int:
    (folder / "f.toml").write_text('[labs]\nfolder = "labs"\n' + text)
    words = ["bottlegan", "simulate", str(folder / "f.toml"), "--out", str(folder / "run"), "--engine", "local"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


TASK = 'classes = ["glass", "stroma", "epithelium"]\nignore = 255\n'
POINTWISE = "{in_channels=3, out_channels=3, kernel_size=1}"
HALVING = "{in_channels=3, out_channels=3, kernel_size=2, stride=2}"


@pytest.mark.parametrize(
    ("text", "lab", "server", "own"),
    [
        (
            f"[phase2]\nnetwork = {{factory='torch.nn:Conv2d', arguments={POINTWISE}}}\n[phase2.task]\n{TASK}",
            "",
            "dark: cannot take part: the network's factory torch.nn:Conv2d is not allowed here; add \"torch.nn:Co",
            "torch.nn:Conv2d is not allowed here",
        ),
        (
            '[phase2.task]\nclasses = ["stroma", "epithelium"]\nignore = 255\n',
            "",
            "dark: cannot take part: its labeled images cannot be used for these classes; the lab's own log names",
            "_mask.png: holds 2, which is no class id; the classes are 0 stroma, 1 epithelium",
        ),
        (
            f"[phase2.training]\ncrop = 32\n[phase2.task]\n{TASK.replace(']', ', ' + repr('necrosis') + ']')}",
            "",
            "no lab has labels of the class necrosis; give some, or remove it from phase2.task.classes",
            "",
        ),
        (
            f"[phase2.task]\n{TASK}",
            'classes = ["glass", "epithelium", "stroma"]\n',
            "its lab.toml has other classes than the federation's glass, stroma, epithelium; make them the same",
            "the classes are glass, epithelium, stroma in lab.toml, and glass, stroma, epithelium",
        ),
        (
            f"[phase2.training]\ncrop = 96\n[phase2.task]\n{TASK}",
            "",
            "crops of 96 px are larger than an image of 64 px; set phase2.training.crop to at most 64",
            "crops of 96 px are larger than an image of 64 px",
        ),
        ('[phase2.network]\nfactory = "nowhere:at_all"\n', "", "nowhere of the factory nowhere:at_all cannot be", ""),
        (
            '[phase2.network]\nfactory = "os:getcwd"\n',
            "",
            "os:getcwd returns a str; it must return a torch",
            "",
        ),
        (
            f"[phase2]\nnetwork = {{factory='torch.nn:Conv2d', arguments={HALVING}}}\n[phase2.task]\n{TASK}",
            "",
            "torch.nn:Conv2d makes (1, 3, 64, 64) of an image (1, 3, 128, 128)",
            "",
        ),
        ('[phase2.task]\nclasses = ["one"]\n', "", "task: classes must be 2 to 64 names, got 1", ""),
    ],
)
def test_bad_input_is_told_in_one_line_at_the_server_and_in_the_lab(
    text: str,
    lab: str,
    server: str,
    own: str,
    labs: Callable[..., dict[str, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = labs(THREE)
    for path in found.values():
        path.write_text(lab + path.read_text())
    assert simulate(monkeypatch, tmp_path, text) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("bottlegan: ")
    assert server in said
    if own:
        told = (found["dark"].parent / "state" / "errors.jsonl").read_text()
        assert own in told
        # The server learns nothing about the lab's files.
        assert str(tmp_path / "labs") not in said
        assert "_mask.png" not in said


def test_one_lab_that_refuses_does_not_stop_the_others(
    labs: Callable[..., dict[str, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("their_networks")
    module.make = lambda classes: nn.Conv2d(3, classes, 1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_networks", module)
    found = labs(THREE, factories=("their_networks:make",))
    third = write_lab(tmp_path / "labs" / "third", LABORATORIES[5], THREE)
    theirs = NetworkConfig(factory="their_networks:make")
    state = run_local({**found, "third": third}, plan(THREE, theirs, mode="plain"), tmp_path / "run")
    assert state.history.rounds[-1].trained == ("dark", "pale")
    events = [json.loads(line) for line in (tmp_path / "run" / "federation.jsonl").read_text().splitlines()]
    (left,) = [event for event in events if event["kind"] == "left out"]
    assert left["client"] == "third"
    assert "cannot take part: the network's factory their_networks:make is not allowed here" in left["reason"]
