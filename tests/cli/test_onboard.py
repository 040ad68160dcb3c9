from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bottlegan.cli.main import app
from bottlegan.core.errors import InputError
from bottlegan.imaging.files import read_image, write_image
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.files import load_model
from bottlegan.models.weights import read_document
from bottlegan.simulation.lab import draw_labs
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES, REFERENCE
from bottlegan.training.lab_samples import LabPixels, join_pixels, sample_lab


def run(*words: str | Path) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `lab` with two images in a style, and `truth` with the same tissue in the reference stain."""
    root = tmp_path_factory.mktemp("lab")
    tissue = torch.stack([draw_tissue(seed=21, index=i, size=224).concentration for i in range(2)])
    for folder, style in (("lab", LABORATORIES[6]), ("truth", REFERENCE)):
        (root / folder).mkdir()
        for index, levels in enumerate(from_batch(render(tissue, style))):
            write_image(root / folder / f"{index}.png", levels)
    return root


def error(a: Path, b: Path) -> float:
    pairs = [(read_image(file), read_image(b / file.name)) for file in sorted(a.iterdir())]
    return float(np.mean([((x / 255.0 - y / 255.0) ** 2).mean() for x, y in pairs]))


def test_a_folder_is_normalized_with_nothing_but_its_name(lab: Path, tmp_path: Path) -> None:
    run("normalize", lab / "lab", tmp_path / "out")
    assert error(tmp_path / "out", lab / "truth") < 0.2 * error(lab / "lab", lab / "truth")


def test_each_image_can_have_a_style_of_its_own(lab: Path, tmp_path: Path) -> None:
    run("normalize", lab / "lab", tmp_path / "each", "--each")
    run("normalize", lab / "lab" / "1.png", tmp_path / "one.png")
    assert (read_image(tmp_path / "each" / "1.png") == read_image(tmp_path / "one.png")).all()


def test_an_onboarded_style_normalizes_and_restains(lab: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    output = run("onboard", lab / "lab", "--name", "seven", "--out", model)
    assert "seven: " in output
    assert "96 bytes" in output
    assert "verdict on seven" in read_document(model).record
    assert read_document(model).reference == REFERENCE
    run("normalize", lab / "lab", tmp_path / "there", "--model", model, "--style", "seven")
    run("restain", lab / "truth", tmp_path / "back", "--model", model, "--style", "seven")
    nothing = error(lab / "lab", lab / "truth")
    assert error(tmp_path / "there", lab / "truth") < 0.2 * nothing
    assert error(tmp_path / "back", lab / "lab") < 0.2 * nothing
    run("normalize", lab / "lab", tmp_path / "whole", "--model", model, "--to", "seven")
    assert error(tmp_path / "whole", lab / "lab") < 0.02 * nothing


def test_a_second_lab_leaves_the_first_as_it_was(lab: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    run("onboard", lab / "lab" / "0.png", "--name", "a", "--out", one)
    run("onboard", lab / "truth" / "0.png", "--name", "b", "--model", one, "--out", two)
    assert load_model(two).codes.names == ["a", "b"]
    assert torch.equal(load_model(two).codes["a"], load_model(one).codes["a"])


def test_what_shows_no_tissue_is_refused_and_not_added(tmp_path: Path) -> None:
    write_image(tmp_path / "blank.png", np.full((128, 128, 3), 240, np.uint8))
    words = ("onboard", tmp_path / "blank.png", "--name", "x", "--out", tmp_path / "m.safetensors")
    with pytest.raises(InputError, match="refused"):
        run(*words)
    assert not (tmp_path / "m.safetensors").exists()
    run(*words, "--force")
    assert read_document(tmp_path / "m.safetensors").record["forced"] == 1


TINY = """
known = 60
width = 8
labs = 3
finder_steps = 2
steps = 100
batch = 2
pixels = 48
scored = 16
"""


def test_a_prior_can_be_trained_by_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(seed: int, labs: int, progress: object = None) -> LabPixels:
        """Few labs, of few tissues; training itself draws whole batches in processes of their own."""
        drawn = list(draw_labs(seed, 0, labs))
        return join_pixels([sample_lab(lab, np.random.default_rng(0)) for lab in drawn])

    monkeypatch.setattr("bottlegan.training.prior.draw_pixels", draw)
    monkeypatch.setattr("bottlegan.simulation.lab.TISSUES", 4)
    (tmp_path / "tiny.toml").write_text(TINY)
    out = tmp_path / "prior.safetensors"
    said = run("train-prior", "--config", tmp_path / "tiny.toml", "--out", out, "--seed", "3")
    assert f"Wrote {out}, {out.stat().st_size} bytes." in said
    found = read_document(out)
    assert found.record == {"seed": 3, "steps": 100, "labs": "6, simulated"}
    assert (found.encoders, found.styles, found.reference) == ((8, 8), (), REFERENCE)
    assert "onboarding simulated labs" in out.with_suffix(".jsonl").read_text()
    with pytest.raises(InputError, match="must end in"):
        run("train-prior", "--out", tmp_path / "prior.bin")
