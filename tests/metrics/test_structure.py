import pytest
import torch

from bottlegan.core.errors import InputError
from bottlegan.metrics.structure import monotonicity, nuclei_swapped
from bottlegan.simulation.styles import render
from bottlegan.stain.density import to_density, to_rgb
from bottlegan.stain.style import LABORATORIES, REFERENCE

# Left half light, right half dark: half of all pairs are clearly ordered.
TWO_TONES = torch.cat([torch.full((1, 3, 16, 8), 0.9), torch.full((1, 3, 16, 8), 0.3)], dim=3)
# Gray and never quite black or white, so that inverting it clearly reverses each clear pair.
GRAYS = (0.2 + 0.6 * torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(0))).expand(3, 3, 32, 32)
NOISE = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_identity_swaps_nothing_and_an_inverted_image_everything() -> None:
    for images in (TWO_TONES, GRAYS):
        assert nuclei_swapped(images, images).tolist() == [0.0] * len(images)
        assert nuclei_swapped(1 - images, images).tolist() == [1.0] * len(images)


def test_images_are_measured_each_on_its_own() -> None:
    both = torch.cat([TWO_TONES, TWO_TONES])
    assert nuclei_swapped(torch.cat([TWO_TONES, 1 - TWO_TONES]), both).tolist() == [0.0, 1.0]


def test_a_share_of_swapped_pixels_is_found() -> None:
    """Light and dark change places in half of the rows. A pair is reversed if both of its pixels are there."""
    output = TWO_TONES.clone()
    output[:, :, 8:] = TWO_TONES[:, :, 8:].flip(3)
    # Light left against dark right: rows of both pixels are swapped in 1/4 of the pairs; in half they come out equal.
    assert nuclei_swapped(output, TWO_TONES).item() == pytest.approx(0.25, abs=0.02)


def test_pairs_that_do_not_differ_clearly_do_not_count() -> None:
    density = torch.zeros(1, 3, 8, 8)
    density[..., 4:] = 0.29
    pale = to_rgb(density)
    assert nuclei_swapped(pale.flip(3), pale).tolist() == [0.0]
    density[..., 4:] = 0.31
    clear = to_rgb(density)
    assert nuclei_swapped(clear.flip(3), clear).tolist() == [1.0]


def test_a_small_reversal_counts() -> None:
    slightly = torch.full_like(TWO_TONES, 0.5)
    slightly[..., 8:] = to_rgb(to_density(slightly[..., 8:]) - 0.04)
    assert nuclei_swapped(slightly, TWO_TONES).tolist() == [1.0]


def test_other_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="same tissue"):
        nuclei_swapped(NOISE, TWO_TONES)


def draw_mixtures() -> torch.Tensor:
    """Return concentrations (1, 2, 128, 128) with every mixture of both stains."""
    return torch.rand(1, 2, 128, 128, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("style", LABORATORIES[:3], ids=lambda style: style.name)
def test_more_hematoxylin_is_never_lighter_in_any_stain_unless_inverted(style) -> None:
    truth, output = (render(draw_mixtures(), each) for each in (REFERENCE, style))
    assert monotonicity(output, truth).tolist() == [1.0]
    assert monotonicity(1 - output, truth).tolist() == [0.0]


def test_a_map_that_folds_back_is_found() -> None:
    """Densities above 1 come down again, so the upper part of each ramp falls."""
    truth = render(draw_mixtures(), REFERENCE)
    folded = to_rgb(1 - (1 - to_density(truth)).abs())
    assert 0.2 < monotonicity(folded, truth).item() < 0.9


def test_a_blank_image_has_no_step_that_falls() -> None:
    blank = torch.ones(1, 3, 32, 32)
    assert monotonicity(blank, blank).tolist() == [1.0]
