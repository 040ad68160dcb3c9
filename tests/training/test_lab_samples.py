import numpy as np

from bottlegan.core.progress import Silent
from bottlegan.models.pixel_sets import DENSITY, VIEWS
from bottlegan.simulation.lab import PATCHES, SHOWN, SimulatedLab
from bottlegan.training.lab_samples import BATCH, KEPT, LabPixels, draw_batch, draw_pixels, join_pixels, sample_lab

ARRAYS = ("density", "roughness", "truth", "is_glass", "is_nuclear", "is_he", "is_physical")


def draw_plain_lab(seed: int = 0) -> SimulatedLab:
    """Return a lab whose files are the truth, and whose glass is all that is bright."""
    images = np.random.default_rng(seed).integers(0, 256, (PATCHES, SHOWN, SHOWN, 3), dtype=np.uint8)
    glass, nuclear = images[..., 0] > 200, images[..., 0] < 50
    return SimulatedLab(list(images), list(images), glass, nuclear, is_he=True, is_physical=False)


def same(left: LabPixels, right: LabPixels) -> bool:
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in ARRAYS)


def test_pixels_are_those_of_their_patch_with_their_truth_and_glass() -> None:
    pixels = sample_lab(draw_plain_lab(), np.random.default_rng(0))
    assert pixels.density.shape == (1, PATCHES, KEPT, VIEWS, 3)
    assert pixels.roughness.shape == pixels.is_glass.shape == (1, PATCHES, KEPT)
    np.testing.assert_allclose(pixels.density[..., 0, :], DENSITY[pixels.truth], atol=4e-3)  # half precision
    np.testing.assert_array_equal(pixels.is_glass, pixels.truth[..., 0] > 200)
    np.testing.assert_array_equal(pixels.is_nuclear, pixels.truth[..., 0] < 50)
    assert (pixels.is_he.tolist(), pixels.is_physical.tolist()) == ([True], [False])
    rows = {patch.tobytes() for patch in pixels.truth[0]}
    assert len(rows) == PATCHES, "each patch shows pixels of its own"


def test_no_pixel_is_taken_twice_and_others_are_taken_another_time() -> None:
    lab = draw_plain_lab()
    first, again, other = (sample_lab(lab, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert same(first, again)
    assert not np.array_equal(first.truth, other.truth)
    for patch in first.density[0]:
        assert len(np.unique(patch.reshape(KEPT, -1), axis=0)) == KEPT


def test_labs_are_joined_in_order() -> None:
    parts = [sample_lab(draw_plain_lab(seed), np.random.default_rng(seed)) for seed in range(3)]
    joined = join_pixels(parts)
    assert len(joined) == 3
    for row, part in enumerate(parts):
        np.testing.assert_array_equal(joined.truth[row], part.truth[0])


def test_what_is_drawn_does_not_depend_on_the_process_that_draws_it() -> None:
    tracked: list[tuple[str, int | None]] = []

    class Told(Silent):
        def track(self, items, label, total=None, unit=None):
            tracked.append((label, total))
            yield from items

    drawn = draw_pixels(3, 1, Told())
    assert len(drawn) == BATCH, "whole batches"
    here = draw_batch(3, 0)
    for name in ARRAYS:  # with another number of threads, a last bit may decide on a level
        assert (getattr(drawn, name) == getattr(here, name)).mean() > 0.999
    assert tracked == [("drawing simulated labs", 1)]
    assert len({lab.tobytes() for lab in drawn.truth}) == BATCH
    assert 0.85 < drawn.is_he.mean() < 1
    assert (drawn.is_he | ~drawn.is_physical).all()
