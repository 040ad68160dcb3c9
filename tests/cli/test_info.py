from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bottlegan.cli.main import app
from bottlegan.core.errors import ModelFileError
from bottlegan.core.task import Task
from bottlegan.models.document import PRIOR
from bottlegan.models.network_file import NetworkDocument, save_network
from bottlegan.models.networks import NetworkConfig, build_network, exchanged
from bottlegan.models.weights import read_weights, write_weights


def test_a_model_says_what_it_is_and_which_styles_it_knows(tmp_path: Path) -> None:
    weights = read_weights(PRIOR)
    known = {f"lab-{index}": np.zeros(weights.document.model.code_size, np.float32) for index in range(23)}
    write_weights(weights.with_styles(known), tmp_path / "m.safetensors")
    said = CliRunner().invoke(app, ["info", str(tmp_path / "m.safetensors")]).output
    assert "many-one-many" in said
    assert "styles         23: lab-0, lab-1" in said
    assert "and 3 more" in said
    assert "seed: 0" in said


def test_a_broken_model_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "m.safetensors"
    broken.write_bytes(PRIOR.read_bytes()[:1000])
    with pytest.raises(ModelFileError, match="cut off"):
        CliRunner().invoke(app, ["info", str(broken)], catch_exceptions=False)


def test_a_network_says_what_it_is(tmp_path: Path) -> None:
    task, config = Task(classes=("other", "tumor"), micrometers=0.5), NetworkConfig(arguments={"width": 2})
    built = build_network(config, task, torch.Generator(), crop=32)
    said = NetworkDocument(
        task=task,
        network=config,
        crop=32,
        mode="normalize",
        model="a" * 64,
        temperature=1.25,
        scores={"iou": 0.5},
        weights="0" * 64,
        record={"rounds": 3},
    )
    save_network(tmp_path / "n.safetensors", exchanged(built.network), said)
    found = CliRunner().invoke(app, ["info", str(tmp_path / "n.safetensors")]).output
    for line in (
        "segmentation: other, tumor",
        "0.5 micrometers",
        "reference stain",
        f"normalized by  {'a' * 64}",
        "1.250",
        "iou: 0.5000",
        "rounds: 3",
    ):
        assert line in found
    assert "bottlegan.models.segmenter:unet, {'width': 2}" in found
