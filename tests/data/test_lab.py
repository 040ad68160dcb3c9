from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottlegan.core.errors import InputError
from bottlegan.data import lab
from bottlegan.data.lab import MOST_IMAGES, read_lab, spread
from bottlegan.imaging.files import write_image


def gray(level: int) -> np.ndarray:
    return np.full((8, 8, 3), level, np.uint8)


@given(st.integers(1, 200), st.integers(2, 50))
def test_a_spread_has_no_twin_and_reaches_both_ends(count: int, most: int) -> None:
    chosen = spread(range(count), most)
    assert len(chosen) == len(set(chosen)) == min(count, most)
    assert chosen == sorted(chosen)
    assert (chosen[0], chosen[-1]) == (0, count - 1)


def test_files_and_folders_are_read_and_masks_are_not(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    write_image(tmp_path / "folder" / "a.png", gray(1))
    write_image(tmp_path / "folder" / "a_mask.png", gray(2))
    write_image(tmp_path / "b.png", gray(3))
    images = read_lab([tmp_path / "folder", tmp_path / "b.png"])
    assert [int(image[0, 0, 0]) for image in images] == [1, 3]


def test_of_many_images_only_some_are_read(tmp_path: Path) -> None:
    for index in range(MOST_IMAGES + 10):
        write_image(tmp_path / f"{index:03d}.png", gray(index))
    assert len(read_lab([tmp_path])) == MOST_IMAGES


def test_a_slide_gives_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slide.svs").touch()
    write_image(tmp_path / "b.png", gray(3))
    asked = {}

    def sample(path: Path, count: int, seed: int) -> list[np.ndarray]:
        asked.update(path=path, count=count, seed=seed)
        return [gray(k) for k in range(count)]

    monkeypatch.setattr(lab, "open_slide", nullcontext)
    monkeypatch.setattr(lab, "sample_tissue", sample)
    images = read_lab([tmp_path / "slide.svs", tmp_path / "b.png"], seed=5)
    assert asked == {"path": tmp_path / "slide.svs", "count": MOST_IMAGES // 2, "seed": 5}
    assert len(images) == MOST_IMAGES // 2 // 4 + 1


def test_tiles_are_joined_by_four() -> None:
    assert lab.join_tiles([]) == []
    joined = lab.join_tiles([gray(k) for k in range(6)])
    side = len(gray(0))
    assert [len(each) for each in joined] == [2 * side, side, side]
    assert joined[0][::side, ::side, 0].tolist() == [[0, 1], [2, 3]]
    assert [each[0, 0, 0] for each in joined[1:]] == [4, 5]


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_lab([tmp_path])
