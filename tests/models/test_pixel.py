from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bottlegan.core.errors import ConfigError
from bottlegan.models.config import GeneratorConfig
from bottlegan.models.pixel import KNOWN_CODES, Modulation, PixelGenerator
from bottlegan.stain.density import to_density, to_rgb

CODE = 6
ROUNDED = {"rtol": 0, "atol": 1e-5}
"""Largest difference between sums in different orders. Levels use the kernel, which has one order."""


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def codes(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, CODE, generator=torch.Generator().manual_seed(seed))


def built(trained: bool = False, **changes: Any) -> PixelGenerator:
    """A small generator; optionally with nonzero weights everywhere, as after training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        generator = PixelGenerator(GeneratorConfig(**{"width": 32, "mapping": 8, **changes}), CODE)
        if trained:
            for parameter in generator.parameters():
                nn.init.normal_(parameter, std=0.2)
    return generator


@pytest.mark.parametrize("statistics", ["frozen", "instance"])
@pytest.mark.parametrize("mapping", [0, 8])
def test_it_is_the_identity_until_trained(statistics: str, mapping: int) -> None:
    images = noise(2, 3, 7, 9)
    output = built(statistics=statistics, mapping=mapping)(images, codes(2))
    torch.testing.assert_close(output, images, **ROUNDED)


def test_without_a_skip_it_is_not() -> None:
    images = noise(2, 3, 7, 9)
    output = built(skip=False)(images, codes(2))
    assert (output - images).abs().mean() > 0.1
    assert ((output >= 0) & (output <= 1)).all()


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("statistics", ["frozen", "instance"])
@pytest.mark.parametrize("mapping", [0, 8])
def test_every_parameter_and_the_code_are_trained(skip: bool, statistics: str, mapping: int) -> None:
    generator = built(skip=skip, statistics=statistics, mapping=mapping)
    code = codes(2).requires_grad_()
    optimizer = torch.optim.SGD(generator.parameters(), lr=0.1)
    # Zeros in the last layer hide the others from the first gradient.
    for _ in range(2):
        optimizer.zero_grad()
        (generator(noise(2, 3, 6, 6), code) - noise(2, 3, 6, 6, seed=5)).square().mean().backward()
        optimizer.step()
    for name, parameter in [*generator.named_parameters(), ("code", code)]:
        assert parameter.grad is not None, name
        if name.startswith("convolutions") and name.endswith("bias") and statistics == "instance":
            continue  # taken away again by the norm, as in every network with one
        assert parameter.grad.abs().max() > 1e-9, name


@settings(max_examples=30)
@given(st.data(), st.sampled_from([4, 32, 48]), st.sampled_from([0, 2]))
def test_a_tile_is_mapped_as_in_the_image(data: st.DataObject, width: int, depth: int) -> None:
    generator, image, code = built(trained=True, width=width, depth=depth), noise(1, 3, 61, 83), codes(1)
    top, left = data.draw(st.integers(0, 60)), data.draw(st.integers(0, 82))
    bottom, right = data.draw(st.integers(top + 1, 61)), data.draw(st.integers(left + 1, 83))
    with torch.no_grad():
        whole = generator(image, code)[..., top:bottom, left:right]
        torch.testing.assert_close(generator(image[..., top:bottom, left:right], code), whole, **ROUNDED)


def test_an_image_is_mapped_as_in_a_batch() -> None:
    generator, images, code = built(trained=True), noise(3, 3, 40, 40), codes(3)
    with torch.no_grad():
        together = generator(images, code)
        for i in range(3):
            torch.testing.assert_close(generator(images[i : i + 1], code[i : i + 1])[0], together[i], **ROUNDED)
        channels_last = images.to(memory_format=torch.channels_last)
        torch.testing.assert_close(generator(channels_last, code), together, **ROUNDED)
        assert generator(images[:0], code[:0]).shape == (0, 3, 40, 40)


def test_instance_statistics_make_a_tile_depend_on_its_image() -> None:
    generator, code = built(trained=True, statistics="instance"), codes(1)
    image = torch.cat([noise(1, 3, 16, 16), 0.2 * noise(1, 3, 16, 16, seed=1)], dim=3)
    with torch.no_grad():
        assert (generator(image[..., :16], code) - generator(image, code)[..., :16]).abs().mean() > 1e-3


@pytest.mark.parametrize("statistics", ["frozen", "instance"])
def test_with_and_without_gradients_it_is_the_same_map(statistics: str) -> None:
    generator, images, code = built(trained=True, statistics=statistics), noise(2, 3, 33, 35), codes(2)
    with torch.no_grad():
        fast = generator(images, code)
    slow = generator(images, code)
    assert slow.requires_grad
    torch.testing.assert_close(fast, slow.detach(), rtol=0, atol=1e-5)
    assert slow.detach().std() > 0.01


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (2, 3)])
@pytest.mark.parametrize("statistics", ["frozen", "instance"])
def test_images_of_any_size(statistics: str, size: tuple[int, int]) -> None:
    generator = built(trained=True, statistics=statistics)
    assert generator(noise(2, 3, *size), codes(2)).shape == (2, 3, *size)
    with torch.no_grad():
        assert generator(noise(2, 3, *size), codes(2)).isfinite().all()


def test_the_skip_is_a_linear_map_of_densities_that_the_code_chooses() -> None:
    generator = built()
    linear = generator.linear
    assert linear is not None
    with torch.no_grad():
        # Code 0 sets the entry of red from green, and code 1 the bias of blue.
        linear.weight[1, 0], linear.weight[11, 1] = 0.25, 0.5
        density = to_density(noise(1, 3, 2, 2))
        code = torch.tensor([[2.0, 3, 0, 0, 0, 0]])
        expected = density.clone()
        expected[:, 0] += 0.5 * density[:, 1]
        expected[:, 2] += 1.5
        torch.testing.assert_close(generator.density(density, code), expected)
        torch.testing.assert_close(generator(to_rgb(density), code), to_rgb(expected), rtol=0, atol=1e-5)


def test_without_hidden_layers_it_is_the_linear_map_alone() -> None:
    generator, images, code = built(trained=True, depth=0, mapping=0), noise(2, 3, 7, 9), codes(2)
    assert {name for name, _ in generator.named_parameters()} == {"linear.weight", "linear.bias"}
    linear = generator.linear
    assert linear is not None
    numbers = linear(code).detach()
    matrix = numbers[:, :9].reshape(2, 3, 3) + torch.eye(3)
    expected = to_rgb((matrix @ to_density(images).flatten(2)) + numbers[:, 9:, None]).reshape(images.shape)
    with torch.no_grad():
        torch.testing.assert_close(generator(images, code), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(generator(images, code).detach(), expected, rtol=0, atol=1e-5)
    identity = built(depth=0, mapping=0)(images, code)
    torch.testing.assert_close(identity, images, **ROUNDED)


@pytest.mark.parametrize("form", [{"skip": False}, {"kind": "unet"}])
def test_without_hidden_layers_and_linear_map_nothing_is_left(form: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="without hidden layers"):
        GeneratorConfig(depth=0, **form)


def test_a_code_beyond_all_that_is_known_moves_the_linear_map_only() -> None:
    generator = built(trained=True)
    density = to_density(noise(1, 3, 4, 4))
    far, farther = (torch.full((1, CODE), factor * KNOWN_CODES) for factor in (2.0, 3.0))
    with torch.no_grad():
        layers = [generator._residual(density, code) for code in (far, farther)]
        whole = [generator.density(density, code) for code in (far, farther)]
    assert torch.equal(*layers)
    assert (whole[0] - whole[1]).abs().max() > 0.1


def test_modulation_scales_and_shifts_each_channel_by_its_images_code() -> None:
    modulation = Modulation(2, 1, "frozen")
    with torch.no_grad():
        modulation.affine.weight[:, 0] = torch.tensor([1.0, 2, 3, 4])
    x = torch.ones(2, 2, 1, 1) * torch.tensor([1.0, 10])[:, None, None]
    output = modulation(x, torch.tensor([[0.0], [1.0]]))[:, :, 0, 0]
    assert output.tolist() == [[1, 10], [1 * 2 + 3, 10 * 3 + 4]]


def test_instance_statistics_are_those_of_each_image_and_channel() -> None:
    modulation = Modulation(2, 1, "instance")
    output = modulation(3 + 5 * noise(2, 2, 20, 20), torch.zeros(2, 1)).detach()
    torch.testing.assert_close(output.mean((2, 3)), torch.zeros(2, 2), rtol=0, atol=1e-5)
    torch.testing.assert_close(output.std((2, 3)), torch.ones(2, 2), rtol=0, atol=1e-2)
