import numpy as np
import pytest

from bottlegan.simulation.restaining import TO_REFERENCE, restain_patches
from bottlegan.simulation.tissue import draw_tissue


@pytest.fixture(scope="module")
def amounts() -> np.ndarray:
    return np.stack([draw_tissue(1, index, 160).concentration.numpy() for index in range(4)])


def test_strong_stain_is_one_in_every_patch(amounts: np.ndarray) -> None:
    for patch in restain_patches(amounts * np.array([0.6, 1.4], np.float32)[:, None, None]):
        found = np.linalg.inv(TO_REFERENCE).T @ patch.reshape(2, -1)
        np.testing.assert_allclose(np.percentile(found, 99, axis=1), 1, rtol=1e-3)


def test_how_strongly_a_patch_is_stained_does_not_matter(amounts: np.ndarray) -> None:
    paler = amounts * np.array([0.8, 0.9], np.float32)[:, None, None]
    np.testing.assert_allclose(restain_patches(paler), restain_patches(amounts), atol=0.12)


def test_stains_keep_their_names(amounts: np.ndarray) -> None:
    for before, after in zip(amounts, restain_patches(amounts), strict=True):
        for stain in (0, 1):
            assert np.corrcoef(before[stain].ravel(), after[stain].ravel())[0, 1] > 0.9


def test_a_patch_without_two_stains_stays_as_it_is(amounts: np.ndarray) -> None:
    blank, single = np.zeros_like(amounts[:1]), amounts[:1].copy()
    single[:, 1] = 0
    for patches in (blank, single):
        assert np.array_equal(restain_patches(patches), patches)
