from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bottlegan.imaging.files import Pixels
from bottlegan.slides.grid import Region
from bottlegan.slides.reader import PlainImage, open_slide
from bottlegan.viewer.pyramid import Pyramid


def join(pyramid: Pyramid, step: int) -> Pixels:
    grid = pyramid.grid(step)
    rows = [[pyramid.read(step, x, y) for x in range(grid.columns)] for y in range(grid.rows)]
    return np.vstack([np.hstack(row) for row in rows])


@settings(max_examples=30)
@given(width=st.integers(1, 700), height=st.integers(1, 700), seed=st.integers(0, 9))
def test_each_step_shows_the_whole_image(
    tmp_path_factory: pytest.TempPathFactory, width: int, height: int, seed: int
) -> None:
    path = tmp_path_factory.mktemp("image") / "image.png"
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(image).save(path, compress_level=0)
    pyramid = Pyramid(PlainImage(path))
    assert (join(pyramid, 0) == image).all()
    for step, size in enumerate(pyramid.sizes):
        shown = join(pyramid, step)
        assert shown.shape == (size.height, size.width, 3)
        if step == 1:
            even = image[: height // 2 * 2, : width // 2 * 2].astype(float)
            means = (even[::2, ::2] + even[1::2, ::2] + even[::2, 1::2] + even[1::2, 1::2]) / 4
            assert np.abs(shown[: height // 2, : width // 2] - means).max(initial=0) <= 1


def test_steps_that_are_levels_are_read_as_they_are(slides: list[Path]) -> None:
    with open_slide(slides[0]) as slide:
        pyramid = Pyramid(slide)
        assert pyramid.tile == (128, 128)
        level = slide.levels[1]
        assert (join(pyramid, 2)[: level.height, : level.width] == slide.read(Region(1, 0, 0, *level))).all()
        whole = slide.read(Region(0, 0, 0, *slide.levels[0]))
        half = np.asarray(Image.fromarray(whole).reduce(2))
        assert np.abs(join(pyramid, 1).astype(int) - half).max() <= 1


@pytest.mark.parametrize("side", [100, 300])
def test_a_small_picture_shows_the_whole_slide(slides: list[Path], side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_slide(slides[0]) as slide:
        whole = Image.fromarray(slide.read(Region(0, 0, 0, *slide.levels[0])))
        for quick in (2**24, 1000):
            monkeypatch.setattr("bottlegan.viewer.pyramid.QUICK", quick)
            small = Pyramid(slide).draw_small(side)
            assert max(small.shape) == side
            # A mean of many pixels, because the slide's coarse level has every fourth pixel instead.
            ours, wanted = (
                np.asarray(each.resize((9, 9), Image.Resampling.BOX)) for each in (Image.fromarray(small), whole)
            )
            assert np.abs(ours.astype(int) - wanted).mean() < 4


def test_tiles_beyond_the_slide_are_refused(slides: list[Path]) -> None:
    with open_slide(slides[0]) as slide:
        pyramid = Pyramid(slide)
        for place in ((0, 5, 0), (0, -1, 0), (9, 0, 0), (-1, 0, 0)):
            with pytest.raises(IndexError):
                pyramid.read(*place)
