import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from bottlegan.core.task import IGNORED
from bottlegan.losses import (
    Adversarial,
    Classes,
    class_loss,
    critic_loss,
    cycle_loss,
    deception_loss,
    gradient_penalty,
    identity_loss,
    profile_distance,
)

REAL = torch.tensor([2.0, 0.5, -1.0]).reshape(3, 1, 1, 1)
FAKE = torch.tensor([-3.0, 0.0, 0.5, 1.5]).reshape(4, 1, 1, 1)
offset = st.floats(-5, 5, width=32)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("wasserstein", -0.25 - 0.5),
        ("lsgan", (1 + 0.25 + 4) / 3 + (9 + 0 + 0.25 + 2.25) / 4),
        ("hinge", (0 + 0.5 + 2) / 3 + (0 + 1 + 1.5 + 2.5) / 4),
    ],
)
def test_critic_loss_by_hand(form: Adversarial, expected: float) -> None:
    assert critic_loss(form, REAL, FAKE).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("form", "expected"), [("wasserstein", 0.25), ("hinge", 0.25), ("lsgan", (16 + 1 + 0.25 + 0.25) / 4)]
)
def test_deception_loss_by_hand(form: Adversarial, expected: float) -> None:
    assert deception_loss(form, FAKE).item() == pytest.approx(expected)


@pytest.mark.parametrize("form", ["wasserstein", "lsgan", "hinge"])
def test_critic_and_generator_pull_in_opposite_directions(form: Adversarial) -> None:
    real, fake = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    raised, lowered = torch.autograd.grad(critic_loss(form, real, fake + 0.1), (real, fake))
    (deceiving,) = torch.autograd.grad(deception_loss(form, fake), fake)
    assert (raised < 0).all()
    assert (lowered > 0).all()
    assert (deceiving < 0).all()


@pytest.mark.parametrize("loss", [cycle_loss, identity_loss])
def test_cycle_and_identity_are_mean_absolute_differences(loss: object) -> None:
    assert callable(loss)
    assert loss(torch.tensor([1.0, 0.0, 0.5]), torch.tensor([0.0, 0.5, 0.5])).item() == pytest.approx(0.5)


@pytest.mark.parametrize("mix", [0.0, 0.3, 1.0])
def test_gradient_penalty_of_a_linear_critic(mix: float) -> None:
    weights = noise(3, 4, 4).requires_grad_()
    penalty = gradient_penalty(
        lambda x: (x * weights).sum(dim=(1, 2, 3), keepdim=True),
        noise(2, 3, 4, 4, seed=1),
        noise(2, 3, 4, 4, seed=2),
        torch.full((2, 1, 1, 1), mix, dtype=torch.float64),
    )
    norm = weights.detach().norm()
    assert penalty.item() == pytest.approx((norm.item() - 1) ** 2)
    penalty.backward()
    assert weights.grad is not None
    torch.testing.assert_close(weights.grad, 2 * (norm - 1) * weights.detach() / norm)


def test_gradient_penalty_is_taken_at_the_mix_of_each_image() -> None:
    real, fake = torch.ones(2, 1, 2, 2, dtype=torch.float64), torch.zeros(2, 1, 2, 2, dtype=torch.float64)
    mix = torch.tensor([1.0, 0.25], dtype=torch.float64).reshape(2, 1, 1, 1)
    # The gradient of |x|^2 is 2 x, whose norm over four pixels is four times the mix.
    penalty = gradient_penalty(lambda x: x.square().sum(dim=(1, 2, 3), keepdim=True), real, fake, mix)
    assert penalty.item() == pytest.approx(((4 - 1) ** 2 + (1 - 1) ** 2) / 2)


def test_gradient_penalty_is_of_the_mean_over_patches_and_does_not_reach_the_images() -> None:
    real = noise(1, 1, 2, 2).requires_grad_()
    weight = torch.tensor(8.0, dtype=torch.float64, requires_grad=True)
    # Four scores 8 x: their mean has the gradient 2 at each of four pixels, of norm 4.
    penalty = gradient_penalty(lambda x: weight * x, real, noise(1, 1, 2, 2), noise(1, 1, 1, 1))
    assert penalty.item() == pytest.approx(9)
    penalty.backward()
    assert real.grad is None


def test_profile_distance_by_hand() -> None:
    profiles = torch.tensor([[[0.0, 1.0], [2.0, 2.0]], [[5.0, 5.0], [5.0, 5.0]]])
    references = torch.tensor([[[0.0, 1.0], [2.0, 2.0]], [[0.5, 1.0], [2.0, 4.0]], [[9.0, 9.0], [9.0, 9.0]]])
    # The first is at 0 of its first match and at (0.5 + 0 + 0 + 2) / 4 of its second; the second at 4 of its only one.
    distance = profile_distance(profiles, references, torch.tensor([[0, 1], [2, 2]]))
    assert distance.tolist() == pytest.approx([2.5 / 8, 4.0])


def test_profile_distance_pulls_quantiles_to_those_they_are_matched_with() -> None:
    profiles = torch.tensor([[[0.1, 0.9]]], requires_grad=True)
    profile_distance(profiles, torch.tensor([[[0.0, 1.0]]]), torch.tensor([[0]])).sum().backward()
    assert profiles.grad is not None
    assert profiles.grad.flatten().tolist() == [0.5, -0.5]


BEHIND = torch.tensor([2.0, -1.0, 0.5])
LOGITS = torch.stack([torch.zeros(3), BEHIND]).reshape(1, 2, 1, 3)
TRUTH = torch.tensor([1, 0, 0]).reshape(1, 1, 3)
SURPRISE = torch.log1p(torch.exp(torch.tensor([-2.0, -1.0, 0.5])))
SHARE = torch.sigmoid(BEHIND)
DICE = 1 - (2 * SHARE[0] + 1) / (SHARE.sum() + 2)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("cross-entropy", SURPRISE.mean()),
        ("focal", ((1 - torch.exp(-SURPRISE)) ** 2 * SURPRISE).mean()),
        ("dice-ce", SURPRISE.mean() + DICE),
    ],
)
def test_class_loss_by_hand(form: Classes, expected: Tensor) -> None:
    assert class_loss(form, LOGITS, TRUTH).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("form", ["cross-entropy", "focal", "dice-ce"])
def test_what_is_ignored_is_as_if_it_were_not_there(form: Classes) -> None:
    more = torch.cat([LOGITS, torch.full((1, 2, 1, 2), 7.0)], dim=3)
    truth = torch.cat([TRUTH, torch.full((1, 1, 2), IGNORED)], dim=2)
    assert class_loss(form, more, truth).item() == pytest.approx(class_loss(form, LOGITS, TRUTH).item())
    assert class_loss(form, more, torch.full_like(truth, IGNORED)).item() == pytest.approx(0)


def test_dice_is_the_mean_over_all_classes_but_the_first() -> None:
    logits = torch.cat([LOGITS, torch.full((1, 1, 1, 3), -50.0)], dim=1)
    found = class_loss("dice-ce", logits, TRUTH).item()
    # The third class is nowhere, and is found nowhere: there is nothing to blame.
    assert found == pytest.approx((SURPRISE.mean() + DICE / 2).item(), rel=1e-5)


def test_patches_have_no_dice() -> None:
    logits, truth = torch.tensor([[0.0, 2.0], [1.0, 0.0]]), torch.tensor([1, 1])
    assert class_loss("dice-ce", logits, truth) == class_loss("cross-entropy", logits, truth)


def test_pixels_without_weight_do_not_count_but_the_mean_stays_over_all() -> None:
    weight = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 1, 3)
    assert class_loss("cross-entropy", LOGITS, TRUTH, weight).item() == pytest.approx(SURPRISE[0].item() / 3)
    nothing = class_loss("dice-ce", LOGITS, TRUTH, torch.zeros_like(weight))
    assert nothing.item() == pytest.approx(0)


@pytest.mark.parametrize("form", ["cross-entropy", "focal", "dice-ce"])
def test_a_perfect_segmentation_costs_nothing_and_no_epithelium_is_no_fault(form: Classes) -> None:
    for truth in (TRUTH, torch.zeros_like(TRUTH), torch.ones_like(TRUTH)):
        logits = torch.stack([torch.zeros(1, 1, 3), 200.0 * truth - 100], dim=1)
        assert class_loss(form, logits, truth).item() == pytest.approx(0, abs=1e-6)
