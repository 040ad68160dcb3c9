import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from bottlegan.core.errors import ModelFileError
from bottlegan.models.config import GeneratorConfig, ModelConfig, Paradigm
from bottlegan.models.document import KEY
from bottlegan.models.files import encoder_widths, load_model, save_model
from bottlegan.models.paradigms import PARADIGMS, BottleGAN, StyleModel, build_model
from bottlegan.models.style_encoder import StyleEncoder
from bottlegan.models.weights import read_document
from bottlegan.simulation.styles import stain_densities
from bottlegan.stain.style import REFERENCE

Values = dict[str, Any]
Tensors = dict[str, Tensor]


def built(paradigm: Paradigm = "many-one-many") -> StyleModel:
    generator = GeneratorConfig(width=4, depth=1, mapping=3)
    config = ModelConfig(paradigm=paradigm, code_size=2, generator=generator)
    return build_model(config, ("a", "b"), torch.Generator().manual_seed(0))


def rewrite(path: Path, change: Callable[[Values, Tensors], object]) -> None:
    """Change the document and the tensors of a file without any check."""
    with safe_open(path, framework="pt") as file:
        values = json.loads(file.metadata()[KEY])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
    change(values, tensors)
    save_file(tensors, path, {KEY: json.dumps(values)})


def refused(path: Path, message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as error:
        load_model(path)
    assert str(error.value).startswith(str(path))
    assert str(error.value).isprintable()


WIDTHS = (8, 4)
BASIS, HEAD = "encoders.1.basis", "encoders.1.further.opinion.weight"


@pytest.fixture
def with_encoders(tmp_path: Path) -> Path:
    """A good model file with encoders of widths 8 and 4."""
    model = built()
    assert isinstance(model, BottleGAN)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.encoders.extend(StyleEncoder(stain_densities(REFERENCE), width) for width in WIDTHS)
    save_model(model, tmp_path / "e.safetensors")
    return tmp_path / "e.safetensors"


def test_encoders_are_saved_with_their_model_in_half_precision(with_encoders: Path) -> None:
    assert read_document(with_encoders).encoders == WIDTHS
    model = load_model(with_encoders)
    assert isinstance(model, BottleGAN)
    assert encoder_widths(model) == WIDTHS
    for encoder in model.encoders:
        assert isinstance(encoder, StyleEncoder)
        torch.testing.assert_close(encoder.basis[:2], stain_densities(REFERENCE).float(), rtol=1e-3, atol=1e-3)
        assert all(torch.equal(weight, weight.half().float()) for weight in encoder.state_dict().values())
        assert not encoder.training
    before = with_encoders.read_bytes()
    save_model(model, with_encoders)
    assert with_encoders.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v, t: v.update(encoders=[8, 7]), "`encoders.1.* has shape"),
        (lambda v, t: v.update(encoders=[8]), "unexpected tensor `encoders.1"),
        (lambda v, t: v.update(encoders=[8, 4, 4]), "tensor `encoders.2.* is missing"),
        (lambda v, t: v.update(encoders=[8, 0]), r"`encoders\[1\]` must be from 1 to 1024, got 0"),
        (lambda v, t: v.update(encoders=[8, 1025]), r"`encoders\[1\]` must be from 1 to 1024, got 1025"),
        (lambda v, t: v.update(encoders=[8] * 17), "`number of encoders` must be from 0 to 16, got 17"),
        (lambda v, t: v.pop("encoders"), "unexpected tensor `encoders"),
        (lambda v, t: t.pop(BASIS), f"tensor `{BASIS}` is missing"),
        (lambda v, t: t.update({BASIS: torch.eye(4).half()}), r"shape \(4, 4\), expected \(3, 3\)"),
        (lambda v, t: t.update({HEAD: t[HEAD][:-1]}), f"`{HEAD}` has shape"),
        (lambda v, t: t.update({HEAD: t[HEAD].float()}), f"`{HEAD}` is F32, it must be F16"),
        (lambda v, t: t[HEAD][3, 3].fill_(torch.nan), f"`{HEAD}` holds NaN"),
        (lambda v, t: t[BASIS][0].fill_(torch.inf), f"`{BASIS}` holds NaN or infinity"),
    ],
)
def test_a_broken_encoder_is_refused_in_one_line(
    change: Callable[[Values, Tensors], object], message: str, with_encoders: Path
) -> None:
    rewrite(with_encoders, change)
    refused(with_encoders, message)


@pytest.mark.parametrize("paradigm", [paradigm for paradigm in PARADIGMS if paradigm != "many-one-many"])
def test_no_other_paradigm_has_an_encoder(paradigm: Paradigm, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_model(built(paradigm), path)
    assert read_document(path).encoders == ()
    rewrite(path, lambda values, _: values.update(encoders=[8]))
    refused(path, "`number of encoders` must be from 0 to 0, got 1")


def test_an_encoder_whose_stains_are_one_is_refused(plain_prior: BottleGAN, tmp_path: Path) -> None:
    model = copy.deepcopy(plain_prior)
    (encoder,) = model.encoders
    assert isinstance(encoder, StyleEncoder)
    encoder.basis[1] = encoder.basis[0]
    save_model(model, tmp_path / "m.safetensors")
    with pytest.raises(ModelFileError, match="two stains of its encoder are one"):
        load_model(tmp_path / "m.safetensors")
