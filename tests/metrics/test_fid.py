import json
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.metrics.features import FeatureExtractor, OfflineFeatures
from bottlegan.metrics.fid import frechet_distance

counts = st.integers(2, 12)
few = settings(max_examples=25)


class Means(FeatureExtractor):
    """The mean of each channel, in single precision."""

    name = "means"
    comparable = True
    num_features = 3

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3))


def noise(count: int, size: int = 8, seed: int = 0) -> Tensor:
    """Return smooth images whose colors and contrasts differ from each other."""
    generator = torch.Generator().manual_seed(seed)
    color, contrast = torch.rand(2, count, 3, 1, 1, generator=generator)
    return (0.3 + 0.4 * color + 0.3 * contrast * torch.rand(count, 3, size, size, generator=generator)).clamp(0, 1)


def distance(outputs: Tensor, truths: Tensor) -> float:
    return frechet_distance([outputs], [truths]).value


def test_distance_is_that_of_the_two_gaussians() -> None:
    outputs, truths = noise(40, seed=1), noise(50, seed=2)
    (m1, s1), (m2, s2) = (
        (features.mean(dim=0).numpy(), features.T.cov().numpy())
        for features in (images.mean(dim=(2, 3)).double() for images in (outputs, truths))
    )
    expected = ((m1 - m2) ** 2).sum() + (s1 + s2 - 2 * sqrtm(s1 @ s2)).trace().real
    assert expected > 1e-3
    assert frechet_distance([outputs], [truths], Means()).value == pytest.approx(expected, rel=1e-7)


@few
@given(counts, st.integers(0, 99))
def test_a_set_is_no_distance_from_itself_in_any_order_and_batches(count: int, seed: int) -> None:
    images = noise(count, seed=seed)
    assert 0 <= frechet_distance(images.flip(0).chunk(2), images.chunk(3)).value < 1e-6


@few
@given(counts, counts, st.integers(0, 99))
def test_distance_is_symmetric_finite_and_never_negative(one: int, other: int, seed: int) -> None:
    outputs, truths = noise(one, seed=seed), noise(other, seed=seed + 100)
    there, back = distance(outputs, truths), distance(truths, outputs)
    assert there >= 0
    assert there == pytest.approx(back, abs=1e-6)
    json.dumps(there, allow_nan=False)


def test_batches_do_not_matter() -> None:
    outputs, truths = noise(12, seed=1), noise(10, seed=2)
    assert frechet_distance(outputs.chunk(5), iter(truths.chunk(10))).value == pytest.approx(distance(outputs, truths))


def test_distance_grows_with_a_shift_of_color() -> None:
    images = noise(30)
    distances = [
        distance(images * torch.tensor([1, 1 - shift, 1])[:, None, None], images) for shift in (0, 0.05, 0.1, 0.2)
    ]
    assert distances[0] < 1e-6
    assert distances == sorted(distances)
    assert distances[1] > 1e-4


def test_distance_grows_with_a_loss_of_texture() -> None:
    images = noise(30)
    means = images.mean(dim=(2, 3), keepdim=True)
    distances = [distance(torch.lerp(images, means, loss), images) for loss in (0, 0.3, 0.6)]
    assert distances == sorted(distances)
    assert distances[1] > 1e-4


def test_a_few_blank_images_have_a_distance() -> None:
    blank = torch.ones(2, 3, 1, 1)
    assert distance(blank, blank) == 0
    assert distance(blank, blank * 0) == pytest.approx(3 * torch.tensor(256.0).log().item() ** 2, rel=1e-6)


def test_images_of_different_sizes_make_a_set() -> None:
    sizes = [noise(1, size=size, seed=size) for size in (1, 5, 9, 16)]
    assert frechet_distance(sizes, sizes[::-1]).value == pytest.approx(0, abs=1e-6)


def test_a_distance_says_what_it_was_measured_with() -> None:
    images = noise(3)
    assert asdict(frechet_distance([images], [images])) == {
        "value": pytest.approx(0, abs=1e-6),
        "extractor": OfflineFeatures.name,
        "comparable": False,
    }
    measured = frechet_distance([images], [images], Means())
    assert (measured.extractor, measured.comparable) == ("means", True)


def test_no_gradient_is_tracked() -> None:
    class Watching(Means):
        def forward(self, images: Tensor) -> Tensor:
            assert not torch.is_grad_enabled()
            return super().forward(images)

    frechet_distance([noise(3)], [noise(3)], Watching())


@pytest.mark.parametrize(
    ("outputs", "truths", "message"), [(1, 5, "2 output images, got 1"), (5, 0, "2 true images, got 0")]
)
def test_too_few_images_are_an_error(outputs: int, truths: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        frechet_distance([noise(1)] * outputs, [noise(1)] * truths)


def test_bad_images_are_named() -> None:
    with pytest.raises(InputError, match=r"true images of shape .* got \(3, 8, 8\)"):
        frechet_distance([noise(2)], noise(2))
    with pytest.raises(InputError, match=r"output images in .* from nan"):
        frechet_distance([noise(2) * torch.nan], [noise(2)])
