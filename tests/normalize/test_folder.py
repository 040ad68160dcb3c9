from pathlib import Path

import numpy as np
import pytest

from bottlegan.errors import ImageError, InputError
from bottlegan.imaging.files import read_image, write_image
from bottlegan.normalize.folder import map_files

GRAY = np.full((6, 8, 3), 100, np.uint8)


def test_an_image_becomes_an_image(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", GRAY)
    assert map_files(tmp_path / "a.png", tmp_path / "b.tif", lambda x: 255 - x) == [tmp_path / "b.tif"]
    assert (read_image(tmp_path / "b.tif") == 155).all()


def test_a_folder_becomes_a_folder_of_the_same_names(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.png", "b.webp", "b_mask.png"):
        write_image(tmp_path / "in" / name, GRAY)
    map_files(tmp_path / "in", tmp_path / "new" / "out", lambda x: x)
    assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == ["a.png", "b.webp"]


@pytest.mark.parametrize("name", ["a.png", "."])
def test_the_input_is_never_overwritten(tmp_path: Path, name: str) -> None:
    write_image(tmp_path / "a.png", GRAY)
    with pytest.raises(InputError, match="is the input itself"):
        map_files(tmp_path / name, tmp_path / name, lambda x: 255 - x)
    assert (read_image(tmp_path / "a.png") == GRAY).all()


def test_an_image_needs_an_image_name_to_go_to(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", GRAY)
    with pytest.raises(InputError, match="not an image name"):
        map_files(tmp_path / "a.png", tmp_path / "out", lambda x: x)


def test_a_broken_image_leaves_those_before_it_and_nothing_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_image(tmp_path / "in" / "a.png", GRAY)
    (tmp_path / "in" / "b.png").write_text("broken")
    with pytest.raises(ImageError, match=r"b\.png"):
        map_files(tmp_path / "in", tmp_path / "out", lambda x: x)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.png"]
