import pytest
import torch
from torch import Tensor

from bottlegan.models.config import ModelConfig
from bottlegan.models.paradigms import build_model
from bottlegan.stain.affine import AffineMap, StyleMaps, both_ways
from bottlegan.stain.density import map_images
from bottlegan.training.warm import begin_at_maps, describe, tame

NAMES = [f"lab-{index}" for index in range(5)]


def draw_maps() -> StyleMaps:
    random = torch.Generator().manual_seed(0)
    matrix = torch.eye(3) + 0.2 * torch.randn(5, 3, 3, generator=random)
    return both_ways(AffineMap(matrix, 0.1 * torch.randn(5, 3, generator=random)))


def draw_images() -> Tensor:
    return torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_a_model_holds_the_maps_of_both_directions_before_the_first_step() -> None:
    model = build_model(ModelConfig(), NAMES, torch.Generator().manual_seed(0))
    maps, images = draw_maps(), draw_images()
    begin_at_maps(model, maps)
    with torch.no_grad():
        normalized = model.normalize(images, model.codes.table)
        restained = model.restain(images, model.codes.table)
    torch.testing.assert_close(normalized, map_images(maps.normalize, images), rtol=0, atol=1e-4)
    torch.testing.assert_close(restained, map_images(maps.restain, images), rtol=0, atol=1e-4)


@pytest.mark.parametrize("paradigm", ["many-many", "many-one"])
def test_other_paradigms_begin_with_codes_that_tell_the_maps_apart(paradigm) -> None:
    model = build_model(ModelConfig(paradigm=paradigm), NAMES, torch.Generator().manual_seed(0))
    begin_at_maps(model, draw_maps())
    assert torch.pdist(model.codes.table.detach()).min() > 1


def test_fixed_codes_stay_as_they_are() -> None:
    model = build_model(ModelConfig(paradigm="many-one-one"), NAMES, torch.Generator().manual_seed(0))
    begin_at_maps(model, draw_maps())
    assert torch.equal(model.codes.table, torch.eye(5))


def test_codes_have_no_mean_and_unit_variance() -> None:
    codes = describe(torch.randn(50, 12, generator=torch.Generator().manual_seed(0)), 16)
    torch.testing.assert_close(codes.mean(0), torch.zeros(16), rtol=0, atol=1e-4)
    torch.testing.assert_close(codes.square().mean(0)[:12], torch.ones(12), rtol=0, atol=1e-3)
    assert not codes[:, 12:].any()


def test_a_map_far_from_all_others_does_not_push_them_together() -> None:
    numbers = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    wild = numbers.clone()
    wild[0] = 1e6
    tamed = tame(wild)
    torch.testing.assert_close(tamed[1:], numbers[1:])
    assert tamed[0].abs().max() < 100
