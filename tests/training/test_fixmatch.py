from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bottlegan.core.errors import ConfigError
from bottlegan.imaging.files import Pixels
from bottlegan.models.networks import Built
from bottlegan.stain.density import to_density
from bottlegan.training import fixmatch
from bottlegan.training.fixmatch import (
    FixMatchConfig,
    cut_mix,
    cut_out,
    distort,
    draw_rectangles,
    label_sure,
    stain_anew,
    unlabeled_loss,
)
from bottlegan.training.task import TrainingConfig

IMAGES = [np.random.default_rng(k).integers(0, 256, (20, 20, 3)).astype(np.uint8) for k in range(3)]
CROPS = TrainingConfig(batch=4, crop=16)


def stream(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def unchanged(crops: Pixels, random: np.random.Generator) -> Pixels:
    return crops


class Linear(nn.Module):
    """Logits that are proportional to the red channel."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(scale))
        self.calls: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        self.calls.append(images)
        return self.weight * (images[:, :1] - 0.5)


STRICT = FixMatchConfig(surest=0.0)
"""What is above the threshold counts, as published."""


def loss_of(
    network: nn.Module, config: FixMatchConfig = STRICT, seed: int = 0, teacher: nn.Module | None = None
) -> Tensor:
    built = Built(network, 1)
    told = built if teacher is None else Built(teacher, 1)
    return unlabeled_loss(built, told, IMAGES, config, CROPS, vary=unchanged, random=stream(seed))


def test_who_is_sure_of_nothing_learns_nothing() -> None:
    # Its largest confidence is sigmoid(.5) = .62.
    network = Linear(1.0)
    loss = loss_of(network)
    loss.backward()
    assert loss.item() == 0
    assert network.weight.grad is not None
    assert network.weight.grad.item() == 0


def test_who_is_sure_learns() -> None:
    network = Linear(20.0)
    loss = loss_of(network)
    loss.backward()
    assert loss.item() > 0
    assert network.weight.grad is not None
    assert network.weight.grad.item() != 0


def test_only_the_strong_view_has_a_gradient_and_it_differs_from_the_weak_one() -> None:
    network = Linear(20.0)
    loss_of(network)
    weak, strong = network.calls
    assert not torch.equal(weak, strong)
    network = Linear(20.0)
    loss_of(network, replace(STRICT, jitter=0.0))
    weak, strong = network.calls
    same = torch.isclose(weak, strong, atol=1e-5).all(1)
    # Without distortion, only the pasted part differs, and it comes from the neighbor.
    assert 0.4 < same.float().mean() < 0.95
    torch.testing.assert_close(torch.where(same[:, None], weak, weak.roll(1, 0)), strong)


def test_the_strong_view_is_stained_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen by a network that is shown black images instead."""
    monkeypatch.setattr(fixmatch, "stain_anew", lambda images, jitter, random: torch.zeros_like(images))
    network = Linear(20.0)
    loss_of(network, replace(STRICT, jitter=0.0))
    weak, strong = network.calls
    assert weak.any()
    assert not strong.any()


def test_labels_move_with_the_pixels_they_belong_to() -> None:
    # The network is confident about every pixel, and the strong view is undistorted. So each pasted pixel agrees with
    # its label, and the loss is small. Labels that did not move would cost far more.
    class Stepped(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return 10 * torch.sign(images[:, :1] - 0.501)

    assert loss_of(Stepped(), replace(STRICT, jitter=0.0)).item() == pytest.approx(4.54e-5, rel=0.01)


def test_the_teacher_tells_the_truth_and_does_not_learn() -> None:
    # Sure of all pixels, the student is taught the opposite, which costs it much; a teacher that agrees costs little.
    agreeing, opposed = Linear(40.0), Linear(-40.0)
    student = Linear(40.0)
    assert loss_of(student, teacher=opposed).item() > 10 * loss_of(student, teacher=agreeing).item()
    loss_of(student, teacher=opposed).backward()
    assert student.weight.grad is not None
    assert opposed.weight.grad is None


def test_the_surest_pixels_of_each_class_count() -> None:
    # Sure of all eight pixels of the first class, and of the second hardly: .52 to .62.
    logits = torch.zeros(1, 2, 4, 4)
    logits[0, 0, :2] = torch.linspace(4, 9, 8).reshape(2, 4)
    logits[0, 1, 2:] = torch.linspace(0.1, 0.5, 8).reshape(2, 4)
    found, sure = label_sure(logits, STRICT)
    assert sure[0].flatten().tolist() == [1] * 8 + [0] * 8
    found, sure = label_sure(logits, replace(STRICT, surest=0.25))
    assert sure[0].flatten().tolist() == [0, 0, 0, 0, 0, 1, 1, 1] * 2
    assert (found[0, 2:] == 1).all()


def test_of_whole_patches_only_confidence_counts() -> None:
    _, sure = label_sure(torch.tensor([[0.0, 0.1], [9.0, 0.0]]), FixMatchConfig(surest=0.9))
    assert sure.tolist() == [0, 1]


def test_a_higher_threshold_counts_fewer_pixels() -> None:
    losses = [loss_of(Linear(8.0), replace(STRICT, threshold=each)).item() for each in (0.5, 0.9, 0.97)]
    assert losses[0] > losses[1] > losses[2] > 0


def test_both_views_get_their_own_colors() -> None:
    def vary(crops: Pixels, random: np.random.Generator) -> Pixels:
        return np.full_like(crops, random.integers(256))

    network = Linear(20.0)
    built, config = Built(network, 1), FixMatchConfig(jitter=0.0)
    unlabeled_loss(built, built, IMAGES, config, CROPS, vary=vary, random=stream())
    weak, strong = network.calls
    assert weak.unique().numel() == strong.unique().numel() == 1
    assert weak.unique() != strong.unique()


class Patches(Linear):
    """Logits of whole patches."""

    def forward(self, images: Tensor) -> Tensor:
        return 30 * super().forward(images).mean(dim=(2, 3))


def test_patches_learn_from_what_they_are_sure_of_as_a_whole() -> None:
    network = Patches(50.0)
    loss = loss_of(network)
    loss.backward()
    assert network.weight.grad is not None
    assert network.weight.grad.item() != 0
    assert loss_of(Patches(0.001)).item() == 0
    weak, strong = network.calls
    same = torch.isclose(weak, strong, atol=1e-5).all(1)
    assert not same.all()


def test_cut_out_leaves_the_mean_color() -> None:
    images = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    inside = torch.zeros(2, 1, 4, 4, dtype=torch.bool)
    inside[:, :, :2] = True
    found = cut_out(images, inside)
    assert torch.equal(found[:, :, 2:], images[:, :, 2:])
    torch.testing.assert_close(found[:, :, 0, 0], images.mean(dim=(2, 3)))


@given(st.integers(1, 40), st.integers(0, 50))
@settings(max_examples=40)
def test_a_rectangle_is_one_and_covers_up_to_half(side: int, seed: int) -> None:
    for inside in draw_rectangles(3, side, stream(seed))[:, 0]:
        rows, columns = inside.any(1), inside.any(0)
        assert inside.any()
        assert inside.sum() == rows.sum() * columns.sum()
        assert inside.sum() <= 0.5 * side * side + side


def test_cut_mix_pastes_the_next_image() -> None:
    images = torch.arange(3.0).reshape(3, 1, 1, 1).expand(3, 1, 2, 2)
    inside = torch.zeros(3, 1, 2, 2, dtype=torch.bool)
    inside[:, :, 0] = True
    assert cut_mix(images, inside)[:, 0, 0, 0].tolist() == [2, 0, 1]
    assert cut_mix(images, inside)[:, 0, 1, 0].tolist() == [0, 1, 2]


def test_distortion_stays_in_range_and_differs_from_image_to_image() -> None:
    images = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)).expand(2, 3, 8, 8)
    found = distort(images, 0.5, stream())
    assert found.amin() >= 0
    assert found.amax() <= 1
    assert not torch.allclose(found[0], found[1])
    torch.testing.assert_close(distort(images, 0.0, stream()), images)


def test_a_strong_view_is_stained_anew_image_by_image() -> None:
    images = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)).expand(2, 3, 8, 8)
    found = stain_anew(images, 0.2, stream())
    assert found.amin() >= 0
    assert found.amax() <= 1
    assert not torch.allclose(found[0], found[1])
    shift = (to_density(found) - to_density(images)).mean(dim=(0, 2, 3))
    assert (shift - shift.mean()).abs().max() > 0.02, "each channel changes by itself, as between labs"
    torch.testing.assert_close(stain_anew(images, 0.0, stream()), images)


@pytest.mark.parametrize(
    "values",
    [{"threshold": 0.4}, {"threshold": 1.0}, {"weight": 0.0}, {"jitter": 1.0}, {"warm_up": 1.0}, {"surest": 1.0}],
)
def test_impossible_shares_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="fixmatch: threshold"):
        FixMatchConfig(**values)  # type: ignore[arg-type]
