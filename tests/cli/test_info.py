from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bottlegan.cli.main import app
from bottlegan.errors import ModelFileError
from bottlegan.models.document import PRIOR
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
