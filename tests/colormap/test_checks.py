import numpy as np
import pytest

from bottlegan.colormap.checks import STEPS, MapChecks, check_map, largest_jump, lighter_steps, stain_paths
from bottlegan.imaging.files import Pixels


def same(colors: Pixels) -> Pixels:
    return colors.copy()


def invert(colors: Pixels) -> Pixels:
    return 255 - colors


def with_a_cliff(colors: Pixels) -> Pixels:
    """Green falls by 40 levels where red goes from 229 to 230, if green and blue are light; nothing else changes."""
    output = colors.copy()
    output[(colors[:, 0] >= 230) & (colors[:, 1] >= 220) & (colors[:, 2] >= 215), 1] -= 40
    return output


def lightened(colors: Pixels) -> Pixels:
    """White is slightly dark, and everything below level 100 comes out at 200."""
    output = np.minimum(colors, 250)
    output[colors.max(axis=1) < 100] = 200
    return output


def test_the_identity_passes() -> None:
    found = check_map(same, stride=51)
    assert found.white == (255, 255, 255)
    assert found.white_shift == 0
    assert set(found.lighter) == {"gray", "hematoxylin", "eosin", "both stains"}
    assert not any(found.lighter.values())
    assert found.jump.levels == found.dark_jump.levels == 1
    assert found.dark_jump.pairs == 3 * 6 * 6 * 5
    assert found.jump.pairs == 3 * 5 * 5 * 4


def test_an_inverted_map_is_lighter_at_every_step_that_changes_anything() -> None:
    found = check_map(invert, stride=51)
    assert found.white == (0, 0, 0)
    assert found.white_shift == 255
    assert min(found.lighter.values()) > 0.9


def test_white_is_off_by_its_worst_channel() -> None:
    assert MapChecks((250, 255, 241), {}, largest_jump(same, 255), largest_jump(same, 255)).white_shift == 14


def test_dark_that_comes_out_light_is_counted_and_rounding_is_not() -> None:
    paths = stain_paths()
    gray = paths["gray"][:, :, :1].repeat(3, axis=2)
    assert lighter_steps(lightened, gray) == pytest.approx((gray[0, :, 0] < 100).sum() / (STEPS - 1))

    def wobble(colors: Pixels) -> Pixels:
        odd = (colors.sum(axis=1) % 2).astype(np.uint8)
        return np.maximum(colors, 1) - odd[:, None]

    assert (
        lighter_steps(
            wobble, np.array([[[200, 200, 200], [199, 199, 199], [199, 199, 198], [198, 198, 198]]], np.uint8)
        )
        == 0
    )

    slow = np.repeat(np.arange(255, 200, -1, dtype=np.uint8)[None, :, None], 3, axis=2)
    rising = lighter_steps(lambda colors: (200 + (255 - colors) // 2).astype(np.uint8), slow)
    assert rising > 0.9  # each step is less than a level, but all of them together are not


def test_paths_go_from_white_into_darkness() -> None:
    for name, colors in stain_paths().items():
        assert colors.shape[1:] == (STEPS, 3)
        assert (colors[:, 0] == 255).all()
        assert (np.diff(colors.astype(int), axis=1) <= 0).all(), name
    assert (stain_paths()["gray"][0, -1] == 0).all()


def test_a_cliff_between_neighbors_is_found_where_it_is() -> None:
    jump = largest_jump(with_a_cliff, stride=1, darkest=210)
    red, green, blue = jump.color
    assert (jump.levels, red) == (40, 229)
    assert green >= 220
    assert blue >= 215
    assert jump.pairs == 3 * 45 * 46 * 46


def test_a_coarse_grid_sees_only_the_neighbors_of_its_own_colors() -> None:
    def cliff(colors: Pixels) -> Pixels:
        return np.where(colors >= 100, 255, colors).astype(np.uint8)

    assert largest_jump(cliff, stride=9).levels == 156  # 99 is one of them
    assert largest_jump(cliff, stride=10).levels == 1


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_every_channel_and_the_last_level_are_compared(channel: int) -> None:
    def convert(colors: Pixels) -> Pixels:
        output = colors.copy()
        output[colors[:, channel] == 255] = 0
        return output

    jump = largest_jump(convert, stride=2, darkest=200)
    assert jump.levels == 254
    assert jump.color[channel] == 254


def test_the_dark_end_can_be_left_out() -> None:
    def cliff(colors: Pixels) -> Pixels:
        return np.where(colors == 0, 0, np.maximum(colors, 90)).astype(np.uint8)

    assert largest_jump(cliff, 5).levels == 90
    assert largest_jump(cliff, 5, darkest=5).levels == 1
