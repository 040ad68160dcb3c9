import pytest
import torch
from torch import Tensor

from bottlegan.models.critics import Critic, CriticConfig
from bottlegan.stain.density import to_density, to_rgb

SMALL = CriticConfig(width=8, depth=2)
CODE = 4


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def built(code_size: int = 0, config: CriticConfig = SMALL) -> Critic:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Critic(config, code_size)


@pytest.mark.parametrize(("size", "expected"), [((32, 24), (8, 6)), ((33, 27), (8, 6)), ((4, 4), (1, 1))])
def test_there_is_one_score_a_patch(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert built()(noise(2, 3, *size)).shape == (2, 1, *expected)
    assert built(CODE)(noise(2, 3, *size), noise(2, CODE)).shape == (2, 1, *expected)


def test_depth_is_how_often_the_image_is_halved() -> None:
    assert built(config=CriticConfig(width=2, depth=4))(noise(1, 3, 32, 32)).shape == (1, 1, 2, 2)


def test_it_sees_more_stain_of_the_same_texture() -> None:
    # Norms take away exactly this: the same amount of density more, everywhere.
    images = noise(1, 3, 64, 64) * 0.5 + 0.4
    darker = to_rgb(to_density(images) + torch.tensor([0.3, 0.6, 0.2])[:, None, None])
    with torch.no_grad():
        scores, moved = (built()(x)[..., 2:-2, 2:-2] for x in (images, darker))
    assert (moved - scores).mean().abs() > 0.5 * scores.std()


def test_it_sees_the_color_of_a_flat_image() -> None:
    colors = torch.tensor([[0.9, 0.9, 0.9], [0.6, 0.6, 0.6], [0.7, 0.4, 0.6], [0.4, 0.7, 0.6]])
    with torch.no_grad():
        scores = built()(colors[:, :, None, None].expand(-1, -1, 32, 32))[:, 0, 4, 4]
    assert (scores[:, None] - scores)[~torch.eye(4, dtype=torch.bool)].abs().min() > 1e-3


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
def test_it_sees_channels_change_places(order: tuple[int, int, int]) -> None:
    images = noise(2, 3, 16, 16) * torch.tensor([0.9, 0.4, 0.7])[:, None, None]
    with torch.no_grad():
        assert (built()(images) - built()(images[:, order])).abs().mean() > 1e-2


def test_the_style_critic_sees_the_code_of_each_image() -> None:
    critic, images = built(CODE), noise(1, 3, 16, 16).expand(2, -1, -1, -1)
    code = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0]])
    with torch.no_grad():
        one, other = critic(images, code)
        assert (one - other).abs().min() > 1e-4
        torch.testing.assert_close(critic(images, code.flip(0)), torch.stack([other, one]))


def test_a_score_is_of_its_patch_only() -> None:
    images = noise(1, 3, 32, 32)
    changed = images.clone()
    changed[..., 24:, 24:] = 1 - changed[..., 24:, 24:]
    with torch.no_grad():
        moved = (built()(images) - built()(changed))[0, 0].abs()
    assert moved[6:, 6:].min() > 1e-3
    assert moved[:5, :].max() < 1e-5


def test_every_parameter_the_image_and_the_code_get_a_gradient() -> None:
    critic, images, code = built(CODE), noise(2, 3, 16, 16).requires_grad_(), noise(2, CODE).requires_grad_()
    critic(images, code).mean().backward()
    for name, tensor in [*critic.named_parameters(), ("images", images), ("code", code)]:
        assert tensor.grad is not None, name
        assert tensor.grad.abs().max() > 0, name
