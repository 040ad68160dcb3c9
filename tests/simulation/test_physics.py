from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bottlegan.simulation.organs import BLOOD, COLORANTS, EOSIN, HEMATOXYLIN
from bottlegan.simulation.physics import (
    MIDDLE,
    MILD,
    REFERENCE_DENSITIES,
    STRENGTH,
    WAVELENGTHS,
    Draw,
    Jpeg,
    PhysicalLab,
    compress,
    draw_physical_lab,
    expose,
    scan,
    to_reference,
)
from bottlegan.simulation.styles import render
from bottlegan.stain.style import REFERENCE

LABS = [draw_physical_lab(np.random.default_rng(seed)) for seed in range(60)]
SEEDS = st.integers(0, 2**32 - 1)


def pure(lab: PhysicalLab) -> PhysicalLab:
    """Return a lab whose files hold exactly what the scanner sees."""
    return replace(lab, noise=0.0, sharpening=0.0, aberration=np.zeros((3, 2)), shading=0.0, jpeg=None)


def draw_amounts(seed: int, count: int = 1, size: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).random((count, COLORANTS, size, size), np.float32)


def numbers(lab: PhysicalLab) -> list[bytes]:
    return [np.asarray(getattr(lab, name)).tobytes() for name in ("absorption", "bands", "matrix", "white", "gamma")]


def test_a_lab_depends_on_nothing_but_its_random_numbers() -> None:
    again = draw_physical_lab(np.random.default_rng(3))
    assert numbers(again) == numbers(LABS[3])
    assert again.jpeg == LABS[3].jpeg
    assert numbers(again) != numbers(LABS[4])
    amounts = draw_amounts(0)
    files = [scan(expose(amounts, LABS[3]), LABS[3], np.random.default_rng(9))[0] for _ in range(2)]
    assert np.array_equal(*files)


@settings(max_examples=100)
@given(SEEDS)
def test_dyes_sensors_and_color_matrices_are_what_they_say(seed: int) -> None:
    lab = draw_physical_lab(np.random.default_rng(seed))
    assert lab.absorption.shape == (COLORANTS, len(WAVELENGTHS))
    assert lab.absorption.min() >= 0
    assert lab.bands.min() >= 0
    np.testing.assert_allclose(lab.bands.sum(axis=0), 1)
    np.testing.assert_allclose(lab.matrix.sum(axis=1), 1)
    assert 530 <= WAVELENGTHS[lab.absorption[HEMATOXYLIN].argmax()] <= 630
    assert 500 <= WAVELENGTHS[lab.absorption[EOSIN].argmax()] <= 550
    assert (np.diff(WAVELENGTHS @ lab.bands) < 0).all(), "red, green, blue"


def test_hematoxylin_is_broad_and_eosin_narrow() -> None:
    dyes = np.stack([lab.absorption[[HEMATOXYLIN, EOSIN]] for lab in LABS])
    broad, narrow = (dyes > 0.5 * dyes.max(axis=2, keepdims=True)).sum(2).mean(0)
    assert broad > 1.5 * narrow


def test_a_mild_lab_keeps_to_the_middle_of_all_ranges() -> None:
    draws = [Draw(np.random.default_rng(seed)) for seed in range(200)]
    assert np.mean([draw.width == MIDDLE for draw in draws]) == pytest.approx(MILD, abs=0.12)
    for mild in (True, False):
        chosen = [draw for draw in draws if (draw.width == MIDDLE) == mild]
        values = np.array([draw.uniform(10, 20) for draw in chosen for _ in range(20)])
        reach = 5 * (MIDDLE if mild else 1)
        assert 0.95 * reach < np.abs(values - 15).max() <= reach
        assert 0.95 * reach < 5 * max(draw.upto(1) for draw in chosen for _ in range(20)) <= reach


@settings(max_examples=50)
@given(SEEDS)
def test_clear_glass_is_stored_as_the_white_point(seed: int) -> None:
    lab = draw_physical_lab(np.random.default_rng(seed))
    stored = expose(np.zeros((1, COLORANTS, 2, 3), np.float32), lab)
    assert stored.shape == (1, 3, 2, 3)
    white = (np.minimum(lab.white, 1) - lab.black) / (1 - lab.black)
    np.testing.assert_allclose(stored[0, :, 0, 0], white, atol=1e-4)
    assert (stored == stored[:, :, :1, :1]).all()


def test_what_is_below_the_black_point_is_black_and_all_else_is_stretched() -> None:
    lab = replace(draw_physical_lab(np.random.default_rng(0)), white=np.ones(3), flare=0.0)
    amounts = np.linspace(0, 4, 50, dtype=np.float32)[None, None, None].repeat(COLORANTS, 1)
    plain, stretched = (expose(amounts, replace(lab, black=black)) for black in (0.0, 0.2))
    np.testing.assert_allclose(stretched, np.maximum((plain - 0.2) / 0.8, 0), atol=1e-5)
    assert (stretched == 0).any()
    assert 0.05 < np.mean([each.black > 0 for each in LABS]) < 0.25


@settings(max_examples=50)
@given(SEEDS, st.integers(0, COLORANTS - 1), st.floats(0, 2))
def test_more_dye_is_nowhere_brighter(seed: int, colorant: int, more: float) -> None:
    """As the sensor sees it: a color matrix takes some of one channel away from another."""
    lab = replace(draw_physical_lab(np.random.default_rng(seed)), matrix=np.eye(3))
    amounts = draw_amounts(seed)
    darker = amounts.copy()
    darker[:, colorant] += np.float32(more)
    before, after = expose(amounts, lab), expose(darker, lab)
    assert (after <= before + 1e-6).all()
    assert before.min() >= 0
    assert before.max() <= 1


def test_both_stains_make_images_darker_in_every_lab() -> None:
    for lab in LABS:
        amounts = np.zeros((3, COLORANTS, 1, 1), np.float32)
        amounts[1, HEMATOXYLIN] = amounts[2, EOSIN] = 1
        glass, hematoxylin, eosin = expose(amounts, lab)[..., 0, 0]
        assert hematoxylin.min() < glass.max() - 0.1
        assert eosin.min() < glass.max() - 0.05
        assert eosin[1] < glass[1], "eosin absorbs green light"


def test_stains_are_from_pale_to_nearly_black() -> None:
    half = np.zeros((1, COLORANTS, 1, 1), np.float32)
    half[0, HEMATOXYLIN] = 0.5
    densities = []
    for lab in LABS:
        plain = replace(lab, contrast=0.0, flare=0.0, white=np.ones(3), black=0.0)
        densities.append(float(2 * (-np.log(expose(half, plain))).max()))
    assert min(densities) > 0.98 * STRENGTH[0]
    assert max(densities) < 1.02 * STRENGTH[1]
    assert max(densities) > 3.5 * min(densities)


def test_labs_are_of_every_sort() -> None:
    gammas = [lab.gamma for lab in LABS]
    assert min(gammas) == 1
    assert 2 < max(gammas) <= 2.5
    whites = np.array([np.minimum(lab.white, 1) for lab in LABS])
    assert (whites.min(axis=1) == 1).any(), "pure white"
    assert (whites.min(axis=1) < 0.85).any(), "gray"
    assert (np.ptp(whites, axis=1) > 0.03).any(), "tinted"
    assert {lab.jpeg and lab.jpeg.halved_chroma for lab in LABS} == {None, False, True}
    assert {lab.sharpening > 0 for lab in LABS} == {lab.flare > 0 for lab in LABS} == {False, True}
    assert max(lab.noise for lab in LABS) > 2


def test_a_pure_lab_stores_what_the_scanner_sees() -> None:
    images = expose(draw_amounts(0, count=2), LABS[0])
    files = scan(images, pure(LABS[0]), np.random.default_rng(0))
    assert [file.shape for file in files] == [(8, 8, 3)] * 2
    for image, file in zip(images, files, strict=True):
        np.testing.assert_array_equal(file, np.rint(255 * image).transpose(1, 2, 0).astype(np.uint8))


def test_noise_is_as_large_as_it_says() -> None:
    gray = np.full((1, 3, 128, 128), 0.5, np.float32)
    (noisy,) = scan(gray, replace(pure(LABS[0]), noise=3.0), np.random.default_rng(0))
    assert noisy.std() == pytest.approx(3, rel=0.05)
    assert noisy.mean() == pytest.approx(127.5, abs=0.2)


def test_sharpening_raises_edges_and_leaves_even_color() -> None:
    edge = np.full((1, 3, 32, 32), 0.3, np.float32)
    edge[..., 16:] = 0.7
    plain, sharp = (
        scan(edge, replace(pure(LABS[0]), sharpening=amount), np.random.default_rng(0))[0].astype(int)
        for amount in (0.0, 0.8)
    )
    assert sharp.min() < plain.min()
    assert sharp.max() > plain.max()
    assert (sharp[:, [0, -1]] == plain[:, [0, -1]]).all()


def test_aberration_moves_red_and_blue_apart_and_leaves_green() -> None:
    edge = np.full((1, 3, 32, 32), 0.3, np.float32)
    edge[..., 16:] = 0.7
    moved = replace(pure(LABS[0]), aberration=np.array([[0, 0.5], [0, 0], [0, -0.5]]))
    plain, shifted = (scan(edge, lab, np.random.default_rng(0))[0].astype(int) for lab in (pure(LABS[0]), moved))
    assert (shifted[..., 1] == plain[..., 1]).all()
    assert (shifted[:, 16, 0] < plain[:, 16, 0]).all()
    assert (shifted[:, 15, 2] > plain[:, 15, 2]).all()
    assert (shifted[:, :14] == plain[:, :14]).all()
    assert 0.2 < np.mean([lab.aberration.any() for lab in LABS]) < 0.6
    assert all(not lab.aberration[1].any() for lab in LABS)


def test_shading_darkens_the_corners() -> None:
    gray = np.full((1, 3, 33, 33), 0.8, np.float32)
    (shaded,) = scan(gray, replace(pure(LABS[0]), shading=0.25), np.random.default_rng(0))
    assert (shaded[16, 16] == 204).all()
    assert (shaded[[0, 0, -1, -1], [0, -1, 0, -1]] == 153).all()
    assert 0.1 < np.mean([lab.shading > 0 for lab in LABS]) < 0.5


def test_halved_chroma_changes_colors_and_whole_chroma_hardly() -> None:
    stripes = np.zeros((32, 32, 3), np.uint8)
    stripes[:, ::2], stripes[:, 1::2] = (220, 60, 140), (60, 140, 220)
    assert compress(stripes, None) is stripes
    whole, halved = (np.abs(compress(stripes, Jpeg(96, half)).astype(int) - stripes).mean() for half in (False, True))
    assert whole < 3
    assert halved > 5 * whole
    coarse = np.abs(compress(stripes, Jpeg(20, halved_chroma=False)).astype(int) - stripes).mean()
    assert coarse > 2 * whole


def test_the_truth_is_the_reference_stain_of_the_same_tissue() -> None:
    amounts = draw_amounts(1, count=2)
    amounts[:, BLOOD:] = 0
    expected = render(torch.from_numpy(amounts[:, :2]), REFERENCE).numpy()
    np.testing.assert_allclose(to_reference(amounts), expected, atol=1e-5)
    assert (to_reference(np.zeros_like(amounts)) == 1).all()
    assert (REFERENCE_DENSITIES >= 0).all()
    more = amounts.copy()
    more[:, BLOOD:] = 0.5
    assert (to_reference(more) < to_reference(amounts)).all()
