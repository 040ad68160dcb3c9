"""The same bits everywhere: maps of all 256^3 colors by their SHA-256, here and as another processor finds them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bottlegan.colormap.levels import Floats
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.document import FORMAT, PRIOR, ModelDocument
from bottlegan.models.freeze import Direction, make_map
from bottlegan.models.layout import list_shapes
from bottlegan.models.weights import ModelWeights, read_weights

INSIDE = "BOTTLEGAN_PORTABLE"
"""Set for tests that run inside another test."""
OTHER = {
    "NUMBA_CPU_NAME": "generic",
    "OPENBLAS_CORETYPE": "Prescott",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "OMP_NUM_THREADS": "1",
}
"""Asks each library for what the oldest processor can do."""
CODES: dict[str, Floats] = {
    "none": np.zeros(24, np.float32),
    "rising": ((np.arange(24) - 12) / 8).astype(np.float32),
    "zigzag": ((np.arange(24) * 7 % 13 - 6) / 4).astype(np.float32),
}
"""All of them exact numbers."""


def build() -> ModelWeights:
    """Return a model with two hidden layers and a reference stain, all of whose weights are small whole 32nds."""
    generator = GeneratorConfig(width=5, depth=2, mapping=4)
    model = ModelConfig(code_size=3, generator=generator)
    said = ModelDocument(format=FORMAT, model=model, styles=(), record={})
    arrays = {}
    for place, (name, shape) in enumerate(sorted(list_shapes(said).items())):
        numbers = np.arange(np.prod(shape, dtype=int)) * 37 + 11 * place
        arrays[name] = ((numbers % 23 - 11) / 32).astype(np.float32).reshape(shape)
    arrays["reference.stains"] = np.array([[45, 62, 33], [2, 31, 20]], np.float32) / np.float32(32)
    arrays["reference.maps"] = np.tile(np.eye(4, 3, dtype=np.float32), (2, 1, 1))
    return ModelWeights(said, arrays)


@pytest.mark.parametrize(
    ("code", "direction", "everything", "digest"),
    [
        ("none", "normalize", False, "9c9f7402076993b189344cd15d3fddca3501908f8f999a1851f36a4b0d881397"),
        ("rising", "normalize", False, "aaea16b1f79c1124bacadf3645fe8b54fb0f987d4b24da8dcc1a84d7638bf1e8"),
        ("zigzag", "normalize", True, "6e6e13a9ac69392ceb49f5d9cb453ed32175b17000adbc3ea7330155873e4b2e"),
        ("zigzag", "restain", False, "dd7ad1ff8d22b75db9ce197a18e519bffbba50981f6a8e6c8dc4c5e72b77ad6b"),
    ],
    ids=["none", "rising", "everything", "restain"],
)
def test_the_shipped_prior_maps_all_colors_to_these(
    code: str, direction: Direction, everything: bool, digest: str
) -> None:
    assert make_map(read_weights(PRIOR), CODES[code], direction, everything=everything).digest() == digest


def test_two_hidden_layers_map_all_colors_to_these() -> None:
    convert = make_map(build(), np.array([0.5, -1, 0.75], np.float32), "normalize", everything=True)
    assert len(convert.network.shifts) == 2
    assert convert.digest() == "9516dce159767cc3cc3b1b962ab34996ef4373ed16c15ca66ecf45f4440935cd"


@pytest.mark.skipif(INSIDE in os.environ, reason="it runs inside this very test")
def test_another_processor_finds_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", __file__]
    environment = os.environ | OTHER | {INSIDE: "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed, 1 skipped" in done.stdout
    assert list(tmp_path.rglob("*.nbi"))  # compiled anew, for that processor
