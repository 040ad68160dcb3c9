import numpy as np
import pytest
import torch

from bottlegan.models.encoder import Sight, find_glass, look
from bottlegan.models.encoders import Encoders, agree_on_he, find_glass_together, look_together, measure_variance
from bottlegan.models.pixel_sets import VIEWS
from bottlegan.models.style_encoder import StyleEncoder
from bottlegan.simulation.styles import stain_densities
from bottlegan.stain.affine import AffineMap
from bottlegan.stain.style import REFERENCE


def build(seed: int) -> dict[str, np.ndarray]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = StyleEncoder(stain_densities(REFERENCE), 8)
        for parameter in encoder.parameters():
            parameter.data.add_(0.05 * torch.randn_like(parameter))
    return {name: weight.detach().numpy() for name, weight in encoder.weights().items()}


@pytest.fixture
def encoders() -> Encoders:
    return build(0), build(1), build(2)


@pytest.fixture
def sight() -> Sight:
    random = np.random.default_rng(0)
    density = random.uniform(0.1, 1.5, (2, 200, VIEWS, 3)).astype(np.float32)
    roughness = random.uniform(0, 0.2, (2, 200)).astype(np.float32)
    glass = np.full((2, 3), 0.05, np.float32)
    return Sight(density, roughness, random.random((2, 200)) < 0.8, glass, np.array([True, False]))


def test_one_encoder_says_what_it_says_alone(encoders: Encoders, sight: Sight) -> None:
    together, alone = look_together(encoders[:1], sight), look(encoders[0], sight)[-1]
    for way in (0, 1):
        np.testing.assert_array_equal(together.maps[way].matrix, alone.maps[way].matrix)
        np.testing.assert_array_equal(together.maps[way].bias, alone.maps[way].bias)
    np.testing.assert_allclose(together.log_errors, alone.log_errors, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(together.is_he, alone.is_he)


def test_maps_of_several_are_in_the_middle_and_their_order_does_not_matter(encoders: Encoders, sight: Sight) -> None:
    together, again = look_together(encoders, sight), look_together(encoders[::-1], sight)
    alone = [look(weights, sight)[-1] for weights in encoders]
    for way in (0, 1):
        middle = sum(each.maps[way].matrix for each in alone) / 3
        np.testing.assert_allclose(together.maps[way].matrix, middle, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(together.maps[way].matrix, again.maps[way].matrix, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(together.nuclear, sum(each.nuclear for each in alone) / 3, rtol=1e-4, atol=1e-5)


def test_how_far_encoders_are_apart_adds_to_the_expected_error(encoders: Encoders, sight: Sight) -> None:
    same, apart = look_together((encoders[0],) * 3, sight), look_together(encoders, sight)
    own = np.mean([np.exp(2 * look(weights, sight)[-1].log_errors) for weights in encoders], axis=0)
    np.testing.assert_allclose(same.log_errors, look(encoders[0], sight)[-1].log_errors, rtol=1e-4, atol=1e-4)
    assert (np.exp(2 * apart.log_errors) > own * 1.0001).all()


def test_images_are_unlike_he_only_where_all_encoders_say_so() -> None:
    logits = [np.array(each, np.float32) for each in ([-3.0, -3.0, 4.0, 1.0], [-1.0, 1.0, -1.0, 3.0])]
    np.testing.assert_allclose(agree_on_he(logits), [-2, 0, 1.5, 2])


def test_only_pixels_that_count_are_compared() -> None:
    shift = [AffineMap(np.eye(3)[None], np.full((1, 3), by)) for by in (0.0, 0.5)]
    density, counts = np.zeros((1, 4, 3)), np.array([[True, True, False, False]])
    density[0, 2:] = 9  # black both ways
    half_apart = (1 - np.exp(-0.5)) / 2
    assert measure_variance(shift, density, counts)[0] == pytest.approx(half_apart**2)
    assert measure_variance(shift, density, ~counts)[0] == pytest.approx(0, abs=1e-6)
    assert measure_variance(shift, density, counts & False)[0] == 0


def test_glass_is_what_encoders_take_for_it_on_average(encoders: Encoders, sight: Sight) -> None:
    alone = [find_glass(weights, sight.density, sight.roughness) for weights in encoders]
    together = find_glass_together(encoders, sight.density, sight.roughness)
    np.testing.assert_allclose(together, sum(alone) / 3, rtol=1e-4, atol=1e-5)
