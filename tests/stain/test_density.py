import torch
from hypothesis import given
from hypothesis import strategies as st

from bottlegan.imaging.tensors import from_levels, to_levels
from bottlegan.stain.density import BLACK, FADED, NEARLY_WHITE, fade_white, to_density, to_rgb


def test_all_levels_survive_the_round_trip() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_levels(to_rgb(to_density(from_levels(levels)))), levels)


def test_white_is_zero_and_black_is_the_largest() -> None:
    white, black = to_density(torch.tensor([1.0, 0.0]))
    assert white.item() == 0
    assert abs(black.item() - BLACK) < 1e-5


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_light_is_less_density(a: float, b: float) -> None:
    low, high = sorted([a, b])
    dense, thin = to_density(torch.tensor([low, high], dtype=torch.float64))
    assert dense >= thin - 1e-12  # a logarithm may be off by its last bit


@given(st.floats(-1, 7))
def test_density_outside_the_range_is_clipped(density: float) -> None:
    rgb = to_rgb(torch.tensor(density, dtype=torch.float64))
    assert 0 <= rgb <= 1
    clipped = min(max(density, 0), BLACK)
    assert abs(to_density(rgb).item() - clipped) < 1e-6


def test_gradients_are_right() -> None:
    values = torch.linspace(0.1, 0.9, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(to_density, values)
    assert torch.autograd.gradcheck(to_rgb, values)


def test_levels_are_rounded_to_the_nearest() -> None:
    assert to_levels(torch.tensor([0.0, 0.4 / 255, 0.6 / 255, 1.0, 1.5, -0.5])).tolist() == [0, 0, 1, 255, 255, 0]


@given(st.floats(0, 1), st.floats(0, 2))
def test_only_white_fades_and_never_below_what_it_was(density: float, added: float) -> None:
    given, mapped = (torch.full((1, 3, 1), value, dtype=torch.float64) for value in (density, density + added))
    faded = fade_white(mapped, given)
    assert (faded >= given).all()
    assert (faded <= mapped).all()
    if density >= NEARLY_WHITE:
        assert torch.equal(faded, mapped)


def test_white_loses_a_share_of_what_was_added_and_what_was_not_added_stays() -> None:
    white = torch.zeros(1, 3, 1)
    darkened = torch.full_like(white, 0.2)
    torch.testing.assert_close(fade_white(darkened, white), darkened * (1 - FADED))
    lighter = torch.full_like(white, -0.2)
    assert torch.equal(fade_white(lighter, white), lighter)
