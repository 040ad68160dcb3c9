import numpy as np
import pytest
import torch

from bottlegan.core.errors import InputError
from bottlegan.models.code_maps import (
    decode_maps,
    encode_maps,
    find_layers,
    list_numbers,
    read_reference,
    relate_codes,
)
from bottlegan.models.config import GeneratorConfig, ModelConfig, Paradigm
from bottlegan.models.files import to_weights
from bottlegan.models.paradigms import BottleGAN, build_model
from bottlegan.stain.affine import AffineMap, StyleMaps, both_ways
from bottlegan.stain.density import map_images
from bottlegan.training.prior import PriorConfig, begin_prior

# As many styles as for the shipped prior's codes: with fewer, some maps have no code.
SMALL = PriorConfig(model=ModelConfig(code_size=24, generator=GeneratorConfig(width=8, depth=1, mapping=8)), width=8)


@pytest.fixture(scope="module")
def model() -> BottleGAN:
    return begin_prior(SMALL, 0).requires_grad_(False)


def draw_map(random: torch.Generator, count: int) -> AffineMap:
    matrix = torch.eye(3) + 0.3 * torch.randn(count, 3, 3, generator=random)
    return AffineMap(matrix, 0.2 * torch.randn(count, 3, generator=random))


def draw_maps(seed: int = 0, count: int = 20) -> StyleMaps:
    """Return maps of styles whose two directions are not inverses of each other."""
    random = torch.Generator().manual_seed(seed)
    return StyleMaps(draw_map(random, count), draw_map(random, count))


def to_numpy(maps: AffineMap) -> AffineMap:
    return AffineMap(*(part.numpy() for part in maps))


def assert_same(left: StyleMaps, right: StyleMaps, atol: float = 2e-3) -> None:
    for ours, theirs in zip(left, right, strict=True):
        torch.testing.assert_close(ours.matrix, theirs.matrix, rtol=0, atol=atol)
        torch.testing.assert_close(ours.bias, theirs.bias, rtol=0, atol=atol)


def test_a_code_holds_any_two_maps(model: BottleGAN) -> None:
    maps = draw_maps()
    codes = encode_maps(model, maps)
    assert codes.shape == (20, 24)
    assert_same(decode_maps(model, codes), maps)


def test_any_code_is_found_again(model: BottleGAN) -> None:
    codes = torch.randn(10, 24, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(encode_maps(model, decode_maps(model, codes)), codes, rtol=0, atol=1e-2)


def test_what_a_code_holds_is_what_the_network_does(model: BottleGAN) -> None:
    maps, images = draw_maps(count=3), torch.rand(3, 3, 5, 4, generator=torch.Generator().manual_seed(1))
    codes = encode_maps(model, maps)
    torch.testing.assert_close(model.normalize(images, codes), map_images(maps.normalize, images), rtol=0, atol=3e-3)
    torch.testing.assert_close(model.restain(images, codes), map_images(maps.restain, images), rtol=0, atol=3e-3)


def test_a_style_relative_to_itself_changes_nothing(model: BottleGAN) -> None:
    maps = both_ways(draw_map(torch.Generator().manual_seed(3), 1))
    (code,) = encode_maps(model, maps)
    same = decode_maps(model, relate_codes(model, code, code)[None])
    unit = AffineMap(torch.eye(3)[None], torch.zeros(1, 3))
    assert_same(same, StyleMaps(unit, unit), atol=5e-3)


def test_a_related_code_goes_to_the_other_style_and_back(model: BottleGAN) -> None:
    mine, other = encode_maps(model, draw_maps(1, 2))
    found = decode_maps(model, relate_codes(model, mine, other)[None])
    one, two = (decode_maps(model, code[None]) for code in (mine, other))
    assert_same(found, one.relative_to(two), atol=5e-3)


def test_gradients_pass_from_a_code_to_its_maps(model: BottleGAN) -> None:
    maps = draw_maps(count=2)
    matrix = maps.normalize.matrix.clone().requires_grad_()
    encode_maps(model, StyleMaps(AffineMap(matrix, maps.normalize.bias), maps.restain)).square().sum().backward()
    assert matrix.grad is not None
    assert matrix.grad.abs().max() > 0


def test_numbers_are_those_that_the_linear_layers_write() -> None:
    """Beyond identity, and of column vectors, as the generators have them."""
    maps = draw_maps(count=1)
    numbers = list_numbers(maps)
    assert numbers.shape == (1, 24)
    torch.testing.assert_close(numbers[0, :9].reshape(3, 3), maps.normalize.matrix[0].T - torch.eye(3))
    torch.testing.assert_close(numbers[0, 9:12], maps.normalize.bias[0])
    torch.testing.assert_close(numbers[0, 21:], maps.restain.bias[0])


@pytest.mark.parametrize("form", [{"skip": False}, {"kind": "unet"}])
def test_a_model_without_linear_layers_is_refused(form: dict[str, object]) -> None:
    generator = GeneratorConfig(width=4, depth=1, mapping=3, **form)  # type: ignore[arg-type]
    bare = build_model(ModelConfig(code_size=3, generator=generator), ["a"], torch.Generator().manual_seed(0))
    code = bare.codes["a"].detach()
    maps = StyleMaps(*(to_numpy(each) for each in draw_maps()))
    for call in (
        lambda: find_layers(bare),
        lambda: encode_maps(bare, draw_maps()),
        lambda: relate_codes(bare, code, code),
        lambda: find_layers(to_weights(bare)),
        lambda: encode_maps(to_weights(bare), maps),
    ):
        with pytest.raises(InputError, match="no linear layer"):
            call()


@pytest.mark.parametrize("paradigm", ["many-many", "many-one", "many-one-one"])
def test_other_paradigms_hold_no_maps_of_two_ways(paradigm: Paradigm) -> None:
    config = ModelConfig(paradigm=paradigm, code_size=1, generator=GeneratorConfig(width=4, depth=1))
    bare = build_model(config, ["a"], torch.Generator().manual_seed(0))
    for model in (bare, to_weights(bare)):
        with pytest.raises(InputError, match="no linear layer"):
            find_layers(model)


def test_the_layers_of_weights_are_those_of_the_network(model: BottleGAN) -> None:
    layers = find_layers(to_weights(model))
    assert isinstance(layers.weight, np.ndarray)
    assert layers.weight.shape == (24, 24)
    for ours, theirs in zip(layers, find_layers(model), strict=True):
        assert np.array_equal(ours, theirs.numpy())
    assert np.array_equal(layers.bias[12:], model.restainer.linear.bias.numpy())


def test_weights_alone_give_the_same_codes_and_maps(model: BottleGAN) -> None:
    weights, maps = to_weights(model), draw_maps()
    codes = encode_maps(weights, StyleMaps(*(to_numpy(each) for each in maps)))
    assert isinstance(codes, np.ndarray)
    assert codes.dtype == np.float32
    np.testing.assert_allclose(codes, encode_maps(model, maps).numpy(), rtol=0, atol=1e-2)
    for ours, theirs in zip(decode_maps(weights, codes), maps, strict=True):
        np.testing.assert_allclose(ours.matrix, theirs.matrix.numpy(), rtol=0, atol=2e-3)
        np.testing.assert_allclose(ours.bias, theirs.bias.numpy(), rtol=0, atol=2e-3)
    mine, other = codes[:2]
    related = relate_codes(model, *torch.from_numpy(codes[:2]))
    np.testing.assert_allclose(relate_codes(weights, mine, other), related.numpy(), rtol=0, atol=1e-2)


def test_a_model_that_knows_its_reference_stain_says_how_it_lies_to_the_encoders(model: BottleGAN) -> None:
    stains, maps = model.reference.stains, torch.arange(24.0).reshape(2, 4, 3)
    for there, back in (read_reference(stains, maps), read_reference(stains.numpy(), maps.numpy())):
        assert there.matrix.tolist() == maps[:1, :3].tolist()
        assert there.bias.tolist() == maps[:1, 3].tolist()
        assert back.bias.tolist() == maps[1:, 3].tolist()
    for nothing in (0 * stains, 0 * stains.numpy()):
        with pytest.raises(InputError, match="has no data on its reference set"):
            read_reference(nothing, maps)
