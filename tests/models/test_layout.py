import pytest
import torch

from bottlegan.models.config import GeneratorConfig, ModelConfig, Paradigm
from bottlegan.models.document import FORMAT, ModelDocument
from bottlegan.models.files import build_empty, to_weights
from bottlegan.models.layout import list_encoder, list_shapes
from bottlegan.models.paradigms import build_model
from bottlegan.models.style_encoder import StyleEncoder

PARADIGMS = pytest.mark.parametrize("paradigm", ["many-one-many", "many-many", "many-one", "many-one-one"])
STYLES = ("a", "b", "c")


def describe(paradigm: Paradigm, generator: GeneratorConfig, encoders: tuple[int, ...] = ()) -> ModelDocument:
    size = len(STYLES) if paradigm == "many-one-one" else 5
    model = ModelConfig(paradigm=paradigm, code_size=size, generator=generator)
    return ModelDocument(format=FORMAT, model=model, styles=STYLES, encoders=encoders, record={})


def ask_torch(said: ModelDocument) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in build_empty(said).state_dict().items()}


@PARADIGMS
@pytest.mark.parametrize(("depth", "skip"), [(0, True), (1, True), (2, True), (1, False), (2, False)])
@pytest.mark.parametrize("mapping", [0, 8])
def test_shapes_are_those_of_the_network(paradigm: Paradigm, depth: int, mapping: int, skip: bool) -> None:
    for width in (2, 6):
        generator = GeneratorConfig(width=width, depth=depth, mapping=mapping, skip=skip)
        said = describe(paradigm, generator)
        assert list_shapes(said) == ask_torch(said)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("width", [1, 8])
def test_shapes_of_an_encoder_are_those_of_the_network(depth: int, width: int) -> None:
    said = describe("many-one-many", GeneratorConfig(width=4, depth=depth, mapping=0), encoders=(width, 3))
    assert list_shapes(said) == ask_torch(said)
    encoder = StyleEncoder(torch.eye(3)[:2], width)
    assert list_encoder(width) == {name: tuple(each.shape) for name, each in encoder.state_dict().items()}
    assert encoder.weights().keys() == list_encoder(width).keys()


@PARADIGMS
def test_statistics_of_the_image_have_no_weights(paradigm: Paradigm) -> None:
    said = describe(paradigm, GeneratorConfig(width=4, depth=2, mapping=3, statistics="instance", skip=False))
    assert list_shapes(said) == ask_torch(said)


@PARADIGMS
def test_shapes_of_u_nets_are_those_of_the_network(paradigm: Paradigm) -> None:
    said = describe(paradigm, GeneratorConfig(kind="unet", width=4, depth=2, mapping=3))
    assert list_shapes(said) == ask_torch(said)


@PARADIGMS
def test_a_model_that_was_built_has_them_too(paradigm: Paradigm) -> None:
    generator = GeneratorConfig(width=4, depth=1, mapping=3)
    config = ModelConfig(paradigm=paradigm, code_size=5, generator=generator)
    weights = to_weights(build_model(config, STYLES, torch.Generator().manual_seed(0)))
    assert list_shapes(weights.document) == {name: array.shape for name, array in weights.arrays.items()}


def test_a_model_may_know_no_style() -> None:
    said = describe("many-one-many", GeneratorConfig(width=4, depth=1))
    empty = ModelDocument(format=FORMAT, model=said.model, styles=(), record={})
    assert list_shapes(empty) == ask_torch(empty)
    assert list_shapes(empty)["codes.table"] == (0, 5)
