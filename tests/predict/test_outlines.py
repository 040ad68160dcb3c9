import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from skimage.draw import polygon2mask

from bottlegan.predict.outlines import list_colors, trace, write_outlines


def fill(shape: tuple[int, int], regions: list[list[list[list[float]]]]) -> np.ndarray:
    """Draw regions again from their rings."""
    drawn = np.zeros(shape, np.bool_)
    for rings in regions:
        inside, *holes = (polygon2mask(shape, np.array(ring)[:, ::-1] - 0.5) for ring in rings)
        for hole in holes:
            inside &= ~hole
        drawn |= inside
    return drawn


@given(st.integers(0, 50), st.floats(1.0, 4.0))
@settings(max_examples=25)
def test_regions_are_drawn_again_from_their_rings(seed: int, smooth: float) -> None:
    noise = ndimage.gaussian_filter(np.random.default_rng(seed).standard_normal((60, 80)), smooth)
    mask = noise > 0
    drawn = fill(mask.shape, list(trace(mask, 1)))
    # Corners are cut, so only pixels at an edge may differ.
    edge = ndimage.binary_dilation(mask) & ~ndimage.binary_erosion(mask, border_value=1)
    assert not ((drawn != mask) & ~edge).any()
    assert (drawn & mask).sum() / (drawn | mask).sum() > 0.85


def test_a_square_with_a_hole_has_two_closed_rings_where_it_is() -> None:
    mask = np.zeros((20, 30), np.bool_)
    mask[4:14, 5:25] = True
    mask[7:11, 10:20] = False
    ((outline, hole),) = trace(mask)
    assert outline[0] == outline[-1]
    assert np.array(outline).min(0).tolist() == [5, 4]
    assert np.array(outline).max(0).tolist() == [25, 14]
    assert np.array(hole).min(0).tolist() == [10, 7]
    assert np.array(hole).max(0).tolist() == [20, 11]
    assert len(outline) == len(hole) == 9  # four corners, each cut


def test_corners_do_not_connect_and_specks_are_left_out() -> None:
    mask = np.zeros((12, 12), np.bool_)
    mask[:4, :4] = mask[4:8, 4:8] = mask[11, 11] = True
    assert len(list(trace(mask))) == 2
    assert len(list(trace(mask, 1))) == 3
    assert not list(trace(np.zeros((5, 5), np.bool_)))
    assert len(list(trace(np.ones((5, 5), np.bool_)))) == 1


def test_a_file_has_a_feature_for_each_region_in_pixels_of_the_slide(tmp_path: Path) -> None:
    classes = np.zeros((20, 20), np.uint8)
    classes[2:8, 2:8], classes[10:18, 10:18], classes[0, 19] = 1, 2, 255
    path = tmp_path / "a.geojson"
    assert write_outlines(path, classes, ("other", "benign", "tumor"), 4.0) == {"benign": 1, "tumor": 1}
    said = json.loads(path.read_text())
    assert said["type"] == "FeatureCollection"
    first, second = said["features"]
    assert first["properties"]["classification"] == {"name": "benign", "color": list_colors(3)[1].tolist()}
    assert np.array(second["geometry"]["coordinates"][0]).min(0).tolist() == [40, 40]
    assert np.array(second["geometry"]["coordinates"][0]).max(0).tolist() == [72, 72]
    before = path.read_bytes()
    write_outlines(path, classes, ("other", "benign", "tumor"), 4.0)
    assert path.read_bytes() == before


def test_nothing_found_is_a_file_without_features(tmp_path: Path) -> None:
    write_outlines(tmp_path / "a.geojson", np.zeros((4, 4), np.uint8), ("other", "tumor"), 1.0)
    assert json.loads((tmp_path / "a.geojson").read_text())["features"] == []


@pytest.mark.parametrize("count", [2, 8, 20])
def test_neighboring_classes_have_colors_of_their_own(count: int) -> None:
    colors = [tuple(color) for color in list_colors(count)[:count].tolist()]
    assert all(one != other for one, other in pairwise(colors))
    assert (list_colors(count)[count:] == 0).all()
