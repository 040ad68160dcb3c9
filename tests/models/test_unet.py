from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bottlegan.models.config import GeneratorConfig
from bottlegan.models.unet import UNetGenerator

CODE = 5


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def built(trained: bool = False, **changes: Any) -> UNetGenerator:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = GeneratorConfig(**{"kind": "unet", "width": 4, "mapping": 8, **changes})
        generator = UNetGenerator(config, CODE)
        if trained:
            for parameter in generator.parameters():
                nn.init.normal_(parameter, std=0.2)
    return generator


@pytest.mark.parametrize("size", [(1, 1), (5, 8), (13, 7), (16, 16)])
@pytest.mark.parametrize("statistics", ["frozen", "instance"])
def test_it_is_the_identity_until_trained_at_any_size(statistics: str, size: tuple[int, int]) -> None:
    images = noise(2, 3, *size)
    torch.testing.assert_close(built(statistics=statistics)(images, noise(2, CODE)), images, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (11, 6), (9, 9)])
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("depth", [1, 3])
def test_images_of_any_size(depth: int, skip: bool, size: tuple[int, int]) -> None:
    output = built(trained=True, depth=depth, skip=skip)(noise(2, 3, *size), noise(2, CODE))
    assert output.shape == (2, 3, *size)
    assert ((output >= 0) & (output <= 1)).all()


@pytest.mark.parametrize("skip", [True, False])
def test_every_parameter_and_the_code_are_trained(skip: bool) -> None:
    generator = built(skip=skip)
    code = noise(2, CODE).requires_grad_()
    optimizer = torch.optim.SGD(generator.parameters(), lr=0.1)
    # Zeros in the last layer hide the others from the first gradient.
    for _ in range(2):
        optimizer.zero_grad()
        (generator(noise(2, 3, 9, 9), code) - noise(2, 3, 9, 9, seed=5)).square().mean().backward()
        optimizer.step()
    for name, parameter in [*generator.named_parameters(), ("code", code)]:
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-9, name


def test_it_sees_the_neighbors_of_a_pixel_through_all_scales() -> None:
    generator, image, code = built(trained=True), noise(1, 3, 16, 16), noise(1, CODE)
    changed = image.clone()
    changed[..., 8, 8] = 1 - changed[..., 8, 8]
    with torch.no_grad():
        moved = (generator(image, code) != generator(changed, code)).any(1)[0]
    # Three 3x3 convolutions reach 3 pixels. Anything beyond came through a coarser scale.
    assert moved[8, 2]
    assert moved[8, 14]


def test_each_image_has_its_own_code() -> None:
    generator, images = built(trained=True), noise(1, 3, 8, 8).expand(2, -1, -1, -1)
    code = torch.randn(2, CODE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        one, other = generator(images, code)
        assert (one - other).abs().max() > 1e-3
        torch.testing.assert_close(generator(images, code.flip(0)), torch.stack([other, one]), rtol=0, atol=1e-5)
