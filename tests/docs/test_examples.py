"""Every example runs unchanged, and does what it says."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Run = Callable[[str], list[str]]
EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = {
    "monai_albumentations": ("monai", "albumentations"),
    "slide": ("openslide",),
    "predict_geojson": ("openslide",),
    "from_torchstain": ("torchstain",),
}
"""Packages of extras, without which an example is skipped."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run an example in an empty folder, and return the lines that it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)

    def start(name: str) -> list[str]:
        for package in NEEDS.get(name, ()):
            pytest.importorskip(package, reason=f"{package} is not installed")
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return start


def test_a_folder_is_normalized_in_a_data_loader(run: Run) -> None:
    said = run("dataloader")
    assert said[0].startswith("verdict: ")
    assert [line.split(" mean")[0] for line in said[1:]] == ["batch (4, 3, 192, 192)"] * 2


def test_monai_and_albumentations(run: Run) -> None:
    assert run("monai_albumentations") == ["MONAI: (3, 192, 192) torch.uint8", "Albumentations: (192, 192, 3) uint8"]


def test_a_slide_end_to_end(run: Run) -> None:
    run("slide")
    before, after = np.split(np.array(Image.open("example-output/slide/before-after.png")), 2, axis=1)
    assert not np.array_equal(before, after)


def test_a_federation_with_its_own_network(run: Run) -> None:
    said = run("federation")
    assert said[-1] == "6 rounds"
    assert Path("example-output/federation/run/network.safetensors").is_file()
    assert run("federation")[-1] == "6 rounds"  # the second run finds everything done


def test_predictions_become_outlines(run: Run) -> None:
    assert run("predict_geojson")[-1].startswith("outlines: {'epithelium': ")
    outlines = json.loads(Path("example-output/predict/epithelium.geojson").read_text(encoding="utf-8"))
    assert outlines["type"] == "FeatureCollection"
    # How many a network of so few steps finds depends on the last bits of its training.
    assert len(outlines["features"]) >= 5
    assert {outline["properties"]["classification"]["name"] for outline in outlines["features"]} == {"epithelium"}


def test_drift_is_found_from_july_on(run: Run) -> None:
    assert run("drift")[-1] == "drifted: ['2026-07', '2026-08']"


def test_from_torchstain(run: Run) -> None:
    said = run("from_torchstain")
    assert said[0] == "verdict: good"
    assert Path("lab.safetensors").is_file()
    blank = [int(value) for value in said[-1].split("[")[1].strip("] ").split()]
    assert min(blank) >= 240


def test_no_example_is_forgotten() -> None:
    tested = Path(__file__).read_text(encoding="utf-8")
    for file in EXAMPLES.glob("*.py"):
        assert f'run("{file.stem}")' in tested or file.stem == "own_network"


def test_the_notebook_runs_and_shows_its_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES.parent / "docs")
    from pages.notebook import run_notebook  # noqa: PLC0415 - beside the site, not in the package

    path = EXAMPLES / "tour.ipynb"
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    kinds = [[list(output.get("data", {"text": ""})) for output in cell["outputs"]] for cell in cells]
    shown = [[list(output.get("data", {"text": ""})) for output in outputs] for outputs in run_notebook(path)]
    assert shown == kinds
    assert str(kinds).count("image/jpeg") >= 3
