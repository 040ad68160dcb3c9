import numpy as np

from bottlegan.quality.lut_picture import GAP, SIDE, TEXT, cut_colors, draw_map, mix_all
from bottlegan.stain.style import REFERENCE


def panel(sheet: np.ndarray, row: int, column: int) -> np.ndarray:
    top, left = GAP + row * (TEXT + GAP + SIDE) + TEXT, GAP + column * (GAP + SIDE)
    return sheet[top : top + SIDE, left : left + SIDE]


def test_the_picture_shows_colors_before_and_after() -> None:
    mixes = mix_all(REFERENCE)
    sheet = draw_map(lambda colors: colors[:, [1, 2, 0]], mixes)
    assert sheet.dtype == np.uint8
    for column, blue in enumerate((0, 64, 128, 192, 255), start=1):
        assert np.array_equal(panel(sheet, 0, column), cut_colors(blue))
        assert np.array_equal(panel(sheet, 1, column), cut_colors(blue)[..., [1, 2, 0]])
    shown = panel(sheet, 0, 0)
    assert np.array_equal(shown[::4, ::4], mixes)
    assert np.array_equal(panel(sheet, 1, 0), shown[..., [1, 2, 0]])


def test_mixes_grow_from_white_to_both_stains() -> None:
    mixes = mix_all(REFERENCE).astype(int)
    assert (mixes[0, 0] == 255).all()
    assert (np.diff(mixes, axis=0) <= 0).all()
    assert (np.diff(mixes, axis=1) <= 0).all()
    assert mixes[0, -1, 0] < mixes[-1, 0, 0]  # hematoxylin, to the right, is what absorbs red


def test_slices_have_red_to_the_right_and_green_downward() -> None:
    cut = cut_colors(7)
    assert cut[0, -1].tolist() == [255, 0, 7]
    assert cut[-1, 0].tolist() == [0, 255, 7]
