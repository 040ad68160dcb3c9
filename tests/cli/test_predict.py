import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bottlegan.cli import main as cli
from bottlegan.core.task import Task
from bottlegan.imaging.files import read_image, read_values, write_image
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.document import PRIOR
from bottlegan.models.network_file import Mode, NetworkDocument, digest_model, save_network
from bottlegan.models.networks import NetworkConfig, build_network, exchanged
from bottlegan.models.weights import read_weights
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.predict.predictor import Predictor
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES

PATCHES = Task(kind="classification", classes=("benign", "tumor"), micrometers=1.0)
SMALL = NetworkConfig(arguments={"width": 4, "depth": 2})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained networks, images of a lab, and an image that is not H&E."""
    root = tmp_path_factory.mktemp("predict")
    digest = digest_model(read_weights(PRIOR))
    made: list[tuple[str, Mode, Task, NetworkConfig]] = [
        ("network", "normalize", Task(micrometers=1.0), SMALL),
        ("plain", "plain", Task(), SMALL),
        ("patches", "normalize", PATCHES, SMALL),
        (
            "theirs",
            "plain",
            Task(),
            NetworkConfig(factory="torch.nn:Conv2d", arguments={"in_channels": 3, "out_channels": 2, "kernel_size": 1}),
        ),
    ]
    for name, mode, task, config in made:
        built = build_network(config, task, torch.Generator().manual_seed(0), crop=64)
        said = NetworkDocument(
            task=task,
            network=config,
            crop=64,
            mode=mode,
            model=digest if mode == "normalize" else "",
            scores={},
            weights="0" * 64,
            record={},
        )
        save_network(root / f"{name}.safetensors", exchanged(built.network), said)
    (root / "images").mkdir()
    for index in range(2):
        tissue = draw_tissue(4, index, 128).concentration[None]
        write_image(root / "images" / f"{index}.png", from_batch(render(tissue, LABORATORIES[5]))[0])
    write_image(root / "images" / "0_mask.png", np.zeros((128, 128, 3), np.uint8))
    write_image(root / "blank.png", np.full((64, 64, 3), 255, np.uint8))
    return root


def run(monkeypatch: pytest.MonkeyPatch, root: Path, words: str) -> int:
    monkeypatch.chdir(root)
    monkeypatch.setattr("sys.argv", ["bottlegan", "predict", *words.split()])
    try:
        cli.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_an_image_becomes_a_mask_and_a_table(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, root, f"network.safetensors images/0.png {tmp_path / 'm.png'} --probabilities") == 0
    image = Normalizer.fit(root / "images" / "0.png")
    predictor = Predictor.load(root / "network.safetensors").using(image)
    found = predictor(read_image(root / "images" / "0.png"))
    assert np.array_equal(read_values(tmp_path / "m.png"), found.classes)
    shares = read_values(tmp_path / "m_probability_epithelium.png")
    assert np.abs(shares / 255 - found.probabilities[1]).max() <= 0.5 / 255 + 1e-6
    with (tmp_path / "m.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["pixels"]) for row in rows] == np.bincount(found.classes.ravel(), minlength=2).tolist()
    assert float(rows[0]["mm2"]) == pytest.approx(int(rows[0]["pixels"]) / 1e6)


def test_a_folder_becomes_a_folder(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, root, f"network.safetensors images {tmp_path / 'out'}") == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0.png", "1.png", "areas.csv"]


def test_patches_become_a_table_of_scores(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, root, f"patches.safetensors images {tmp_path / 'out'}") == 0
    with (tmp_path / "out" / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == ["0.png", "1.png"]
    assert all(float(row["benign"]) + float(row["tumor"]) == pytest.approx(1, abs=1e-4) for row in rows)
    assert run(monkeypatch, root, f"patches.safetensors images/0.png {tmp_path / 'one.csv'}") == 0
    assert (tmp_path / "one.csv").read_text().count("\n") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("none.safetensors images out", "none.safetensors: there is no such file"),
        ("network.safetensors nowhere out", "nowhere: there is no such file"),
        ("images/0.png images out", "not a whole safetensors file"),
        ("network.safetensors images/0.png out.jpg", "is a .png file; end the name in .png"),
        ("patches.safetensors images/0.png out.png", "is a .csv file; end the name in .csv"),
        ("network.safetensors images/0.png images/0.png", "is an input"),
        ("network.safetensors images images", "is an input"),
        ("plain.safetensors images out --style x", "takes images in any stain"),
        ("plain.safetensors images out --force", "leave out --force and --seed"),
        ("network.safetensors images out --style x --force", "leave it out, or leave out --style"),
        ("network.safetensors images out --level 1", "holds no slide; leave out --level"),
        ("network.safetensors blank.png out.png", "nothing was written; add --force"),
        (
            "theirs.safetensors images out",
            "torch.nn:Conv2d is not allowed here; if you trust it, allow it",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    words: str, message: str, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(root.rglob("*"))
    assert run(monkeypatch, root, words) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert sorted(root.rglob("*")) == before


def test_a_foreign_network_runs_once_it_is_allowed(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, root, f"theirs.safetensors images {tmp_path / 'out'} --allow torch.nn:Conv2d") == 0
    assert (tmp_path / "out" / "1.png").exists()


def test_a_slide_becomes_maps_and_outlines(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
    pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
    image = from_batch(render(draw_tissue(4, 3, 384).concentration[None], LABORATORIES[5]))[0]
    (tmp_path / "slides").mkdir()
    form = {"tile": (128, 128), "photometric": "rgb", "metadata": None, "compression": "deflate"}
    with tifffile.TiffWriter(tmp_path / "slides" / "a.tiff") as file:
        file.write(image, resolution=(1e4, 1e4), resolutionunit="CENTIMETER", **form)
        file.write(image[::2, ::2], subfiletype=1, **form)
    (tmp_path / "slides" / "b.svs").write_bytes(b"no slide")
    assert run(monkeypatch, root, f"network.safetensors {tmp_path}/slides/a.tiff {tmp_path}/a.tiff") == 0
    assert all((tmp_path / f"a.{ending}").exists() for ending in ("tiff", "geojson", "csv"))
    assert run(monkeypatch, root, f"patches.safetensors {tmp_path}/slides/a.tiff {tmp_path}/p.tiff") == 0
    # In a folder, unreadable files are named, and the others are written.
    assert run(monkeypatch, root, f"network.safetensors {tmp_path}/slides {tmp_path}/out") == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.csv", "a.geojson", "a.tiff"]
    assert run(monkeypatch, root, f"plain.safetensors {tmp_path}/slides/a.tiff {tmp_path}/q.tiff") == 2
    assert run(monkeypatch, root, f"plain.safetensors {tmp_path}/slides/a.tiff {tmp_path}/q.tiff --level 1") == 0


def test_the_help_has_an_example() -> None:
    said = CliRunner().invoke(cli.app, ["predict", "--help"]).output
    assert "Example: bottlegan predict" in said
