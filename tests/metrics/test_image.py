import json
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure

from bottlegan.core.errors import InputError
from bottlegan.metrics.image import PSNR_CAP, check_images, compare_images, delta_e, mean_squared_error, psnr, ssim

SCORES = (mean_squared_error, psnr, ssim, delta_e)
sizes = st.integers(1, 14)
few = settings(max_examples=25)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def flat(*colors: tuple[float, float, float], size: int = 12) -> Tensor:
    return torch.tensor(colors)[:, :, None, None].expand(-1, -1, size, size)


@few
@given(st.integers(1, 3), sizes, sizes, st.integers(0, 99))
def test_an_image_of_any_size_equals_itself(count: int, height: int, width: int, seed: int) -> None:
    image = noise(count, 3, height, width, seed=seed)
    scores = compare_images(image, image)
    assert scores.mse.tolist() == [0] * count
    assert scores.psnr.tolist() == [PSNR_CAP] * count
    assert scores.ssim.tolist() == pytest.approx([1] * count, abs=1e-12)
    assert scores.delta_e.tolist() == [0] * count
    json.dumps([value.tolist() for value in asdict(scores).values()], allow_nan=False)


@few
@given(sizes, sizes, st.integers(0, 99))
def test_scores_lie_in_their_ranges_are_symmetric_and_fit_json(height: int, width: int, seed: int) -> None:
    one, other = noise(2, 2, 3, height, width, seed=seed).unbind()
    scores, mirrored = asdict(compare_images(one, other)), asdict(compare_images(other, one))
    for name, (low, high) in {"mse": (0, 1), "psnr": (0, PSNR_CAP), "ssim": (-1, 1), "delta_e": (0, 120)}.items():
        assert scores[name].shape == (2,)
        assert scores[name].dtype == torch.float64
        assert ((low <= scores[name]) & (scores[name] <= high)).all()
        torch.testing.assert_close(scores[name], mirrored[name])
        json.dumps(scores[name].tolist(), allow_nan=False)


@pytest.mark.parametrize("score", SCORES)
def test_each_image_is_scored_on_its_own(score: object) -> None:
    output, truth = noise(3, 3, 16, 16, seed=1), noise(3, 3, 16, 16, seed=2)
    assert callable(score)
    together = score(output, truth)
    torch.testing.assert_close(together, torch.cat([score(output[[i]], truth[[i]]) for i in range(3)]))
    assert len(set(together.tolist())) == 3


def test_mse_and_psnr_of_a_hand_computed_example() -> None:
    output, truth = flat((0.5, 0.5, 0.5), (0, 0, 0)), flat((0.6, 0.5, 0.5), (1, 1, 1))
    assert mean_squared_error(output, truth).tolist() == pytest.approx([0.01 / 3, 1])
    assert psnr(output, truth).tolist() == pytest.approx([24.7712, 0], abs=1e-3)


def test_mse_of_a_faint_difference_is_not_rounded_away() -> None:
    truth = torch.ones(1, 3, 512, 512)
    output = truth.clone()
    output[0, 0, 0, 0] = 254 / 255
    assert mean_squared_error(output, truth).item() == pytest.approx(255**-2 / truth.numel(), rel=1e-5)


def test_ssim_is_that_of_torchmetrics_away_from_the_border() -> None:
    output, truth = noise(2, 3, 24, 30, seed=1), noise(2, 3, 24, 30, seed=2)
    output = (output + truth) / 2
    _, full = structural_similarity_index_measure(
        output.double(), truth.double(), data_range=1.0, reduction="none", return_full_image=True
    )
    torch.testing.assert_close(ssim(output, truth), full[..., 5:-5, 5:-5].mean(dim=(1, 2, 3)), rtol=0, atol=1e-6)


def test_ssim_of_blank_images_compares_their_brightness_only() -> None:
    blank = flat((0.937, 0.937, 0.937))
    assert ssim(blank, blank).item() == pytest.approx(1, abs=1e-12)
    expected = (2 * 0.5 * 0.25 + 1e-4) / (0.5**2 + 0.25**2 + 1e-4)
    assert ssim(flat((0.5, 0.5, 0.5)), flat((0.25, 0.25, 0.25))).item() == pytest.approx(expected)


def test_ssim_of_a_single_pixel_is_that_of_a_blank_image() -> None:
    one, other = flat((0.9, 0.3, 0.5), size=1), flat((0.4, 0.6, 0.5), size=1)
    expected = ssim(flat((0.9, 0.3, 0.5)), flat((0.4, 0.6, 0.5)))
    torch.testing.assert_close(ssim(one, other), expected)


@pytest.mark.parametrize("size", [(10, 11), (11, 10), (11, 11), (1, 40)])
def test_ssim_around_the_size_of_its_window(size: tuple[int, int]) -> None:
    image = noise(1, 3, *size)
    assert -1 < ssim(image, 1 - image).item() < 0


def test_delta_e_of_known_colors() -> None:
    black, white, gray = (0, 0, 0), (1, 1, 1), (0.5, 0.5, 0.5)
    assert delta_e(flat(black), flat(white)).item() == pytest.approx(100, abs=1e-2)
    # sRGB red (L 53.24, a 80.09, b 67.20) against blue (L 32.30, a 79.19, b -107.86).
    assert delta_e(flat((1, 0, 0)), flat((0, 0, 1))).item() == pytest.approx(52.88, abs=1e-1)
    # sRGB is not linear: half of the way is a lightness of 53.39, which CIEDE2000 divides by its weight at the mean.
    weight = 1 + 0.015 * (53.39 / 2 - 50) ** 2 / (20 + (53.39 / 2 - 50) ** 2) ** 0.5
    assert delta_e(flat(black), flat(gray)).item() == pytest.approx(53.39 / weight, abs=1e-2)


def test_delta_e_is_the_mean_over_pixels() -> None:
    truth = torch.zeros(1, 3, 2, 2)
    output = truth.clone()
    output[:, :, 0, 0] = 1
    assert delta_e(output, truth).item() == pytest.approx(25, abs=1e-2)


def test_images_with_a_gradient_are_compared_and_left_alone() -> None:
    image = noise(1, 3, 12, 12).requires_grad_()
    before = image.detach().clone()
    truth = noise(1, 3, 12, 12, seed=3)
    scores = compare_images(image, truth)
    assert (ssim(image, truth), delta_e(image, truth)) == (scores.ssim, scores.delta_e)
    assert not any(value.requires_grad for value in asdict(scores).values())
    assert torch.equal(image, before)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(3, 8, 8), r"shape \(N, 3, H, W\), got \(3, 8, 8\)"),
        (torch.zeros(8, 3, 8), r"got \(8, 3, 8\)"),
        (torch.zeros(1, 1, 8, 8), r"got \(1, 1, 8, 8\)"),
        (torch.zeros(0, 3, 8, 8), r"got \(0, 3, 8, 8\)"),
        (torch.zeros(1, 3, 0, 8), r"got \(1, 3, 0, 8\)"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "uint8; convert"),
        (torch.full((1, 3, 8, 8), 255.0), "from 255 to 255"),
        (torch.full((1, 3, 8, 8), -0.1), "from -0.1 to -0.1"),
        (torch.full((1, 3, 8, 8), torch.nan), "from nan to nan"),
    ],
)
def test_bad_images_are_named(images: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=f"things.*{message}"):
        check_images(images, "things")
    good = torch.zeros(1, 3, 8, 8)
    with pytest.raises(InputError, match=f"output images.*{message}"):
        compare_images(images, good)
    with pytest.raises(InputError, match=f"true images.*{message}"):
        compare_images(good, images)


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 3, 8, 9)])
def test_images_of_another_shape_than_their_truth_are_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="must match"):
        compare_images(torch.zeros(shape), torch.zeros(1, 3, 8, 8))
