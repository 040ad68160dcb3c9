import pytest
import torch

from bottlegan.core.errors import ConfigError
from bottlegan.models.paradigms import drawing_from
from bottlegan.models.segmenter import Segmenter, SegmenterConfig, classifier, unet

SMALL = SegmenterConfig(width=4, depth=2, stride=2)


def build(config: SegmenterConfig = SMALL, seed: int = 0) -> Segmenter:
    with drawing_from(torch.Generator().manual_seed(seed)):
        return Segmenter(config).eval()


def images(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("size", [(1, 1), (3, 17), (16, 16), (33, 20), (64, 37)])
@pytest.mark.parametrize("config", [SMALL, SegmenterConfig(width=3, depth=1, stride=1), SegmenterConfig(width=2)])
@torch.no_grad()
def test_every_pixel_of_an_image_of_any_size_gets_a_logit(size: tuple[int, int], config: SegmenterConfig) -> None:
    found = build(config)(images(2, 3, *size))
    assert found.shape == (2, 1, *size)
    assert found.isfinite().all()


@pytest.mark.parametrize("training", [True, False])
@torch.no_grad()
def test_an_image_does_not_depend_on_the_others_in_its_batch(training: bool) -> None:
    network, batch = build().train(training), images(3, 3, 24, 20)
    together = network(batch)
    for row in range(3):
        torch.testing.assert_close(network(batch[row : row + 1])[0], together[row], rtol=1e-4, atol=1e-5)
    assert not list(network.buffers())


def test_weights_depend_on_the_generator_only() -> None:
    torch.manual_seed(5)
    first = build().state_dict()
    torch.manual_seed(6)
    again, other = build().state_dict(), build(seed=1).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(("classes", "outputs"), [(2, 1), (3, 3), (5, 5)])
@torch.no_grad()
def test_two_classes_take_one_logit(classes: int, outputs: int) -> None:
    assert unet(classes, width=2)(images(2, 3, 20, 30)).shape == (2, outputs, 20, 30)
    assert classifier(classes, width=2)(images(2, 3, 20, 30)).shape == (2, outputs)


def test_a_head_without_gradient_would_learn_nothing() -> None:
    network = build()
    network(images(1, 3, 16, 16)).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


@pytest.mark.parametrize("values", [{"width": 0}, {"depth": 0}, {"depth": 7}, {"stride": 3}])
def test_what_cannot_be_built_is_refused(values: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="segmenter: width must be"):
        SegmenterConfig(**values)
