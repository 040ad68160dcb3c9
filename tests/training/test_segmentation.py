import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bottlegan.errors import ConfigError, InputError
from bottlegan.imaging.files import Levels
from bottlegan.metrics.tally import SIZE, compute_scores
from bottlegan.training.segmentation import (
    Labeled,
    SegmentationConfig,
    draw_crops,
    fill_up,
    fit_temperature,
    labeled_loss,
    predict,
    proximal_term,
    score,
    to_tensors,
)


def labeled(height: int, width: int, seed: int = 0) -> Labeled:
    """An image whose red channel is its mask."""
    random = np.random.default_rng(seed)
    mask = random.random((height, width)) < 0.4
    image = random.integers(0, 256, (height, width, 3)).astype(np.uint8)
    image[..., 0] = 255 * mask
    return Labeled(image, mask)


def stream(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def unchanged(crops: Levels, random: np.random.Generator) -> Levels:
    return crops


class Red(nn.Module):
    """A network whose logit is 8 on red and -8 elsewhere, times a factor."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, images: Tensor) -> Tensor:
        return self.factor * (16 * images[:, :1] - 8)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 24), st.integers(0, 9))
@settings(max_examples=30)
def test_crops_are_of_one_size_and_turn_with_their_masks(height: int, width: int, crop: int, seed: int) -> None:
    config = SegmentationConfig(batch=3, crop=crop)
    crops, masks = draw_crops([labeled(height, width), labeled(width, height, 1)], config, stream(seed))
    assert crops.shape == (3, crop, crop, 3)
    assert masks.shape == (3, crop, crop)
    assert np.array_equal(crops[..., 0] == 255, masks)


def test_crops_come_from_all_places_in_all_directions() -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    image[..., 0] = np.arange(64).reshape(8, 8)
    given_ = [Labeled(image, np.zeros((8, 8), np.bool_))]
    crops, _ = draw_crops(given_, SegmentationConfig(batch=400, crop=2), stream())
    assert len({int(crop[..., 0].min()) for crop in crops}) == 49
    turned = {tuple((crop[..., 0].astype(int) - crop[..., 0].min()).ravel()) for crop in crops}
    assert len(turned) == 8


def test_small_images_are_continued_by_their_reflection() -> None:
    image, mask = fill_up(labeled(3, 5), 4)
    assert image.shape == (4, 5, 3)
    assert np.array_equal(mask[3], mask[2])
    assert np.array_equal(image[3], image[2])


def test_tensors_are_shares_of_one_channel_first() -> None:
    images, truth = to_tensors(np.full((1, 2, 3, 3), 51, np.uint8), np.ones((1, 2, 3), np.bool_))
    assert images.shape == (1, 3, 2, 3)
    assert images.dtype == truth.dtype == torch.float32
    assert images[0, 0, 0, 0].item() == pytest.approx(0.2)
    assert truth.shape == (1, 1, 2, 3)


def test_the_loss_sees_crops_as_they_were_varied() -> None:
    def without_red(crops: Levels, random: np.random.Generator) -> Levels:
        return crops * np.array([0, 1, 1], np.uint8)

    given_, config = [labeled(16, 16)], SegmentationConfig(crop=16)
    easy = labeled_loss(Red(), given_, config, unchanged, stream())
    hard = labeled_loss(Red(), given_, config, without_red, stream())
    assert easy.item() < 0.001
    assert hard.item() > 1


def test_the_proximal_term_is_the_squared_distance() -> None:
    network = nn.Linear(2, 1)
    start = {name: p.detach().clone() for name, p in network.named_parameters()}
    with torch.no_grad():
        network.weight += torch.tensor([[3.0, 0.0]])
        network.bias += 4
    assert proximal_term(network, start).item() == pytest.approx(25)


def test_scores_are_of_images_as_they_are_presented() -> None:
    test = [labeled(9, 7), labeled(5, 12, 1)]
    right = compute_scores(score(Red(), test))
    wrong = compute_scores(score(Red(), [Labeled(255 - each.image, each.mask) for each in test]))
    assert right["iou"] == 1
    assert wrong["iou"] == 0
    assert score(Red(), []).tolist() == [0] * SIZE


def test_a_prediction_is_divided_by_its_temperature() -> None:
    image = labeled(6, 6).image
    assert torch.equal(predict(Red(), image, temperature=2.0), predict(Red(), image) / 2)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_a_known_temperature_is_found_again(temperature: float) -> None:
    random = torch.Generator().manual_seed(0)
    honest = 2 * torch.randn(200_000, generator=random)
    truth = torch.rand(200_000, generator=random) < torch.sigmoid(honest)
    found = fit_temperature(honest * temperature, truth)
    assert found == pytest.approx(temperature, rel=0.03)
    assert torch.equal(honest * temperature / found > 0, honest > 0)


def test_no_pixel_has_no_temperature() -> None:
    with pytest.raises(InputError, match="no pixel"):
        fit_temperature(torch.zeros(0), torch.zeros(0))


@pytest.mark.parametrize("values", [{"steps": 0}, {"batch": 0}, {"crop": 0}, {"learning_rate": 0.0}])
def test_impossible_numbers_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="segmentation: steps"):
        SegmentationConfig(**values)
