import numpy as np
import pytest
from scipy import ndimage

from bottlegan.core.seeding import numpy_stream
from bottlegan.simulation import organs
from bottlegan.simulation.organs import (
    BLOOD,
    COLORANTS,
    COMMON,
    EOSIN,
    HEMATOXYLIN,
    KINDS,
    MICRONS,
    NUCLEAR,
    PIGMENT,
    SALMON,
    VIOLET,
    Kind,
    Patch,
    cross_section,
    draw_kind,
    draw_patch,
    draw_patchwork,
    find_background,
    shift_spectra,
    zoom_prostate,
)
from bottlegan.simulation.tissue import draw_tissue

SIZE = 64


@pytest.fixture(scope="module")
def patches() -> list[Patch]:
    return [draw_patch(7, index, SIZE) for index in range(250)]


def same(left: Patch, right: Patch) -> bool:
    alike = np.array_equal(left.amounts, right.amounts) and np.array_equal(left.glass, right.glass)
    return alike and left.nuclei == right.nuclei


def hematoxylin(patch: Patch) -> np.ndarray:
    return patch.amounts[HEMATOXYLIN] + patch.amounts[VIOLET]


def eosin(patch: Patch) -> np.ndarray:
    return patch.amounts[EOSIN] + patch.amounts[SALMON]


def test_a_patch_depends_on_nothing_but_its_seed_and_number(patches: list[Patch]) -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - it must be left alone
    for index in (31, 2, 200):
        assert same(draw_patch(7, index, SIZE), patches[index])
    assert not any(same(draw_patch(8, index, SIZE), patches[index]) for index in range(6))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    assert len({patch.amounts.tobytes() for patch in patches}) == len(patches)


def test_amounts_are_never_negative_and_seldom_beyond_much(patches: list[Patch]) -> None:
    for patch in patches:
        assert patch.amounts.shape == (COLORANTS, SIZE, SIZE)
        assert patch.amounts.dtype == np.float32
        assert patch.glass.shape == (SIZE, SIZE)
        assert np.isfinite(patch.amounts).all()
        assert patch.amounts.min() >= 0
        assert np.quantile(patch.amounts, 0.99) < 3
        assert 0 <= patch.nuclei <= 1
        assert patch.nuclear.shape == (SIZE, SIZE)
        assert patch.nuclear.min() >= 0
        assert patch.nuclear.max() <= 1 + 1e-6


def test_nuclei_hold_hematoxylin_and_are_nowhere_on_glass(patches: list[Patch]) -> None:
    richer = []
    for patch in patches:
        nuclear, other = patch.nuclear > 0.5, (patch.nuclear < 0.1) & ~patch.glass
        assert (nuclear & patch.glass).mean() < 0.02
        if nuclear.sum() > 50 and other.sum() > 50:
            richer.append(hematoxylin(patch)[nuclear].mean() / hematoxylin(patch)[other].mean())
    assert len(richer) > 100
    assert np.quantile(richer, 0.05) > 1.5


def test_glass_is_where_there_is_nothing_or_nearly_so(patches: list[Patch]) -> None:
    for patch in patches:
        around = ndimage.uniform_filter(patch.amounts.sum(0), 5, mode="nearest")
        assert around[patch.glass].max(initial=0) < 0.06 < around[~patch.glass].min(initial=1) + 1e-6


def test_glass_covers_from_nothing_to_nearly_everything(patches: list[Patch]) -> None:
    share = np.array([patch.glass.mean() for patch in patches])
    assert (share == 0).mean() > 0.1
    assert ((share > 0.1) & (share < 0.5)).mean() > 0.1
    assert share.max() > 0.9


def test_background_is_nowhere_in_most_patches_and_nearly_everywhere_in_some() -> None:
    share = np.array([find_background(numpy_stream(4, index), 48).mean() for index in range(300)])
    assert 0.5 < (share == 0).mean() < 0.7
    assert (share > 0.5).mean() > 0.05
    assert 0.85 < share.max() < 0.97


def test_there_is_no_tissue_on_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    left = np.zeros((SIZE, SIZE), bool)
    left[:, : SIZE // 2] = True
    monkeypatch.setattr(organs, "find_background", lambda rng, size: left)
    for index in range(12):
        amounts = draw_patch(1, index, SIZE).amounts
        if not amounts[[BLOOD, PIGMENT]].any():
            assert amounts[:, :, : SIZE // 2 - 8].max() < 1e-3
            assert amounts[:, :, SIZE // 2 :].max() > 0.05


def test_tissue_is_from_all_ground_to_all_nuclei(patches: list[Patch]) -> None:
    nuclei = np.array([patch.nuclei for patch in patches])
    assert nuclei.min() < 0.005
    assert nuclei.max() > 0.5
    darkest = max(patches, key=lambda patch: patch.nuclei)
    assert darkest.nuclei == pytest.approx((hematoxylin(darkest)[~darkest.glass] > 0.5).mean())


def test_blood_and_pigment_lie_on_some_patches(patches: list[Patch]) -> None:
    for colorant, most in ((BLOOD, 0.4), (PIGMENT, 0.2)):
        shown = np.array([patch.amounts[colorant].max() > 0.1 for patch in patches])
        assert 0.02 < shown.mean() < most
    bloody = max(patches, key=lambda patch: patch.amounts[BLOOD].mean())
    red = bloody.amounts[BLOOD] > 0.3
    assert (eosin(bloody)[red] > 0.2).mean() > 0.9, "red cells take eosin"


def test_sections_are_thicker_than_nuclei_and_dense_tissue_takes_more_of_both_stains() -> None:
    eosin_of_nuclei, correlations = [], []
    for index in range(60):
        layers = np.zeros((NUCLEAR + 1, SIZE, SIZE), np.float32)
        layers[:2], layers[NUCLEAR, :, : SIZE // 2] = 0.5, 1
        cross_section(numpy_stream(8, index), layers)
        assert (layers[:2] > 0).all()
        eosin_of_nuclei.append(layers[EOSIN, :, : SIZE // 2].mean() / layers[EOSIN, :, SIZE // 2 :].mean())
        correlations.append(np.corrcoef(*layers[:2, :, SIZE // 2 :].reshape(2, -1))[0, 1])
    assert min(eosin_of_nuclei) < 0.6
    assert max(eosin_of_nuclei) > 1.6
    assert min(correlations) > 0.99


def test_shifted_spectra_take_a_share_of_each_stain() -> None:
    shares = []
    for index in range(40):
        layers = np.zeros((NUCLEAR + 1, SIZE, SIZE), np.float32)
        layers[HEMATOXYLIN], layers[EOSIN] = 0.3, 0.6
        shift_spectra(numpy_stream(9, index), layers)
        np.testing.assert_allclose(layers[HEMATOXYLIN] + layers[VIOLET], 0.3, rtol=1e-5)
        np.testing.assert_allclose(layers[EOSIN] + layers[SALMON], 0.6, rtol=1e-5)
        assert layers.min() >= 0
        shares.append(layers[SALMON].mean() / 0.6)
    assert min(shares) == 0
    assert max(shares) > 0.35


def test_every_kind_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[Kind, int] = {}
    pixels: set[float] = set()

    def watch(rng: np.random.Generator, size: int, kind: Kind, micron: float) -> np.ndarray:
        drawn[kind] = drawn.get(kind, 0) + 1
        pixels.add(micron)
        return np.zeros((3, size, size), np.float32)

    monkeypatch.setattr(organs, "draw_kind", watch)
    for index in range(300):
        draw_patchwork(numpy_stream(0, index), 16)
    assert set(drawn) == set(KINDS.values())
    assert sum(COMMON) == pytest.approx(1)
    share = np.array([drawn[kind] for kind in KINDS.values()]) / sum(drawn.values())
    assert np.abs(share - COMMON).max() < 0.06
    low, high = MICRONS
    assert low <= min(pixels) < 1.2 * low
    assert 0.85 * high < max(pixels) <= high


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_has_the_colors_that_it_should(name: str) -> None:
    kind = KINDS[name]
    medians = []
    for index in range(8):
        amounts = draw_kind(numpy_stream(1, name, index), 96, kind, 0.5)
        assert amounts.shape == (3, 96, 96)
        assert amounts.min() >= 0
        assert amounts[2].max() <= 1
        ground = amounts[:2, (amounts[2] < 0.1) & (amounts[HEMATOXYLIN] < 0.4) & (amounts[:2].sum(0) > 0.03)]
        medians.append(np.median(ground, axis=1))
    found = np.median(medians, axis=0)
    assert (found > 0.4 * np.array(kind.ground)).all()
    assert (found < 2.5 * np.array(kind.ground)).all()


def test_nuclei_are_where_a_kind_has_many_and_not_where_it_has_none() -> None:
    shares = {}
    for name in ("lymphocytes", "keratin"):
        drawn = [draw_kind(numpy_stream(2, name, index), 96, KINDS[name], 0.5) for index in range(6)]
        shares[name] = np.mean([(each[HEMATOXYLIN] > 0.45).mean() for each in drawn])
    assert shares["lymphocytes"] > 0.2
    assert shares["keratin"] < 0.1


def test_prostate_is_shown_as_it_is_or_enlarged() -> None:
    plain = 0
    for index in range(12):
        layers = zoom_prostate(numpy_stream(5, index), 3, index, 80)
        assert layers.shape == (NUCLEAR + 1, 80, 80)
        assert not layers[BLOOD:NUCLEAR].any()
        assert layers[:2].any()
        tissue = draw_tissue(3, index, 88)
        if np.array_equal(layers[:2], tissue.concentration.numpy()[:, :80, :80]):
            plain += 1
            np.testing.assert_array_equal(layers[NUCLEAR], tissue.nuclear.numpy()[:80, :80])
    assert 2 <= plain <= 10
