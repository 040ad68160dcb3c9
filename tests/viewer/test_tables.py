from pathlib import Path

import numpy as np
import pytest

from bottlegan.normalize.normalizer import Normalizer
from bottlegan.viewer.tables import SPACING, STEPS, iterate_map, sample_doubts, sample_map


@pytest.fixture(scope="module")
def normalizer(slides: list[Path]) -> Normalizer:
    return Normalizer.fit(slides[0])


def test_the_coarse_table_holds_every_third_level(normalizer: Normalizer) -> None:
    table = np.frombuffer(sample_map(normalizer), np.uint8).reshape(STEPS, STEPS, STEPS, 3)
    assert (STEPS - 1) * SPACING == 255
    for red, green, blue in ((0, 0, 0), (255, 255, 255), (180, 90, 150), (3, 252, 81)):
        wanted = normalizer(np.array([[[red, green, blue]]], np.uint8))[0, 0]
        assert (table[red // SPACING, green // SPACING, blue // SPACING] == wanted).all()


def test_the_exact_table_holds_all_colors_in_the_order_of_their_numbers(normalizer: Normalizer) -> None:
    table = np.frombuffer(b"".join(iterate_map(normalizer)), np.uint8).reshape(256**3, 3)
    colors = np.random.default_rng(0).integers(0, 256, (1, 4000, 3), dtype=np.uint8)
    numbers = colors[0].astype(int) @ (65536, 256, 1)
    assert (table[numbers] == normalizer(colors)[0]).all()


def test_doubts_tell_pen_from_tissue(normalizer: Normalizer) -> None:
    table = np.frombuffer(sample_doubts(normalizer), np.uint8).reshape(STEPS, STEPS, STEPS, 2)
    green_pen, white = (30, 150, 60), (255, 255, 255)
    (pen_doubt, pen), (white_doubt, white_pen) = (
        table[tuple(level // SPACING for level in color)] for color in (green_pen, white)
    )
    assert pen > 200
    assert white_pen == 0
    assert pen_doubt > white_doubt
