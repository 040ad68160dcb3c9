import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bottlegan.core.errors import ConfigError, InputError
from bottlegan.core.task import IGNORED, Task
from bottlegan.data.labels import Labeled
from bottlegan.imaging.files import Pixels
from bottlegan.metrics.tally import compute_scores
from bottlegan.models.networks import Built
from bottlegan.training.task import (
    TrainingConfig,
    check_crops,
    count_classes,
    draw_crops,
    labeled_loss,
    lay_out,
    predict_logits,
    proximal_term,
    score,
    to_images,
)

PATCHES = Task(kind="classification", classes=("a", "b"))


def labeled(height: int, width: int, seed: int = 0) -> Labeled:
    """An image whose red channel is its mask."""
    random = np.random.default_rng(seed)
    mask = random.random((height, width)) < 0.4
    image = random.integers(0, 256, (height, width, 3)).astype(np.uint8)
    image[..., 0] = 255 * mask
    return Labeled(image, mask.astype(np.uint8))


def stream(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def unchanged(crops: Pixels, random: np.random.Generator) -> Pixels:
    return crops


class Red(nn.Module):
    """A network whose logit is 8 on red and -8 elsewhere, per pixel or for the whole patch."""

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.whole, self.factor = whole, nn.Parameter(torch.tensor(1.0))

    def forward(self, images: Tensor) -> Tensor:
        logits = self.factor * (16 * images[:, :1] - 8)
        return logits.mean(dim=(2, 3)) if self.whole else logits


RED = Built(Red(), 1)


@given(st.integers(8, 40), st.integers(8, 40), st.integers(1, 8), st.integers(0, 9))
@settings(max_examples=30)
def test_crops_are_of_one_size_and_turn_with_their_masks(height: int, width: int, crop: int, seed: int) -> None:
    config = TrainingConfig(batch=3, crop=crop)
    crops, masks = draw_crops([labeled(height, width), labeled(width, height, 1)], config, stream(seed))
    assert crops.shape == (3, crop, crop, 3)
    assert masks.shape == (3, crop, crop)
    assert np.array_equal(crops[..., 0] == 255, masks == 1)


def test_crops_of_patches_keep_their_class() -> None:
    given_ = [Labeled(np.full((9, 9, 3), k, np.uint8), np.array(k, np.uint8)) for k in range(3)]
    crops, classes = draw_crops(given_, TrainingConfig(batch=20, crop=4), stream())
    assert classes.shape == (20,)
    assert np.array_equal(crops[:, 0, 0, 0], classes)


def test_crops_come_from_all_places_in_all_directions() -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    image[..., 0] = np.arange(64).reshape(8, 8)
    given_ = [Labeled(image, np.zeros((8, 8), np.uint8))]
    crops, _ = draw_crops(given_, TrainingConfig(batch=400, crop=2), stream())
    assert len({int(crop[..., 0].min()) for crop in crops}) == 49
    turned = {tuple((crop[..., 0].astype(int) - crop[..., 0].min()).ravel()) for crop in crops}
    assert len(turned) == 8


def test_crops_larger_than_an_image_are_refused_with_the_remedy() -> None:
    images = [np.zeros((64, 96, 3), np.uint8), np.zeros((200, 200, 3), np.uint8)]
    check_crops(images, 64)
    with pytest.raises(InputError, match=r"crops of 65 px .* of 64 px; set phase2\.training\.crop to at most 64"):
        check_crops(images, 65)


def test_images_are_shares_of_one_channel_first() -> None:
    images = to_images(np.full((1, 2, 3, 3), 51, np.uint8))
    assert images.shape == (1, 3, 2, 3)
    assert images.dtype == torch.float32
    assert images[0, 0, 0, 0].item() == pytest.approx(0.2)


def test_the_loss_sees_crops_as_they_were_varied() -> None:
    def without_red(crops: Pixels, random: np.random.Generator) -> Pixels:
        return crops * np.array([0, 1, 1], np.uint8)

    given_, config = [labeled(16, 16)], TrainingConfig(crop=16)
    easy = labeled_loss(RED, given_, config, unchanged, stream())
    hard = labeled_loss(RED, given_, config, without_red, stream())
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
    test, task = [labeled(9, 7), labeled(5, 12, 1)], Task()
    right = compute_scores(score(RED, test, task), lay_out(task), task.classes)
    wrong = score(RED, [Labeled(255 - each.image, each.truth) for each in test], task)
    assert right["iou"] == 1
    assert compute_scores(wrong, lay_out(task), task.classes)["iou"] == 0
    assert score(RED, [], task).tolist() == [0] * lay_out(task).size


def test_ignored_pixels_are_not_scored() -> None:
    test, task = labeled(9, 7), Task(ignore=255)
    truth = np.where(test.truth == 1, IGNORED, test.truth).astype(np.uint8)
    total = score(RED, [Labeled(255 - test.image, truth)], task)
    assert lay_out(task).split(total)[0][2].tolist() == [(test.truth == 0).sum(), 0]


def test_patches_are_scored_as_a_whole() -> None:
    test = [Labeled(np.full((5, 5, 3), 255 * k, np.uint8), np.array(k, np.uint8)) for k in (0, 1, 1)]
    found = compute_scores(score(Built(Red(whole=True), 1), test, PATCHES), lay_out(PATCHES), PATCHES.classes)
    assert found["accuracy"] == found["balanced_accuracy"] == found["auroc"] == 1


def test_a_prediction_is_divided_by_its_temperature() -> None:
    image = labeled(6, 6).image
    assert torch.equal(predict_logits(RED, image, temperature=2.0), predict_logits(RED, image) / 2)


def test_classes_are_counted() -> None:
    truth = np.array([[0, 1, 1], [IGNORED, 2, 1]], np.uint8)
    given_ = [Labeled(np.zeros((2, 3, 3), np.uint8), truth)]
    assert count_classes(given_, Task(classes=("a", "b", "c", "d"))) == [1, 3, 1, 0]
    patches = [Labeled(np.zeros((2, 3, 3), np.uint8), np.array(1, np.uint8))] * 3
    assert count_classes(patches, PATCHES) == [0, 3]


@pytest.mark.parametrize("values", [{"steps": 0}, {"batch": 0}, {"crop": 0}, {"learning_rate": 0.0}])
def test_impossible_numbers_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="training: steps"):
        TrainingConfig(**values)
