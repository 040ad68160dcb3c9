from pathlib import Path

import pytest
from PIL import Image

from bottlegan.core.errors import InputError, MissingError
from bottlegan.data.patches import list_patches


def save(path: Path, width: int = 8, height: int = 6, mode: str = "RGB") -> None:
    Image.new(mode, (width, height)).save(path)


def test_images_are_listed_by_name_with_the_masks_beside_them(tmp_path: Path) -> None:
    for name in ("b.png", "a.jpg", "c.TIFF", "d.webp"):
        save(tmp_path / name)
    save(tmp_path / "b_mask.png", mode="1")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / ".hidden.png").write_text("")
    patches = list_patches(tmp_path)
    assert [patch.name for patch in patches] == ["a", "b", "c", "d"]
    assert [patch.mask is not None for patch in patches] == [False, True, False, False]
    assert patches[1].read_image().shape == (6, 8, 3)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "a.png")
    save(tmp_path / "a.jpg")
    with pytest.raises(InputError, match=r"a\.jpg and a\.png"):
        list_patches(tmp_path)


@pytest.mark.parametrize("files", [[], ["notes.txt"], ["a_mask.png"]])
def test_a_folder_without_images_is_refused(tmp_path: Path, files: list[str]) -> None:
    for name in files:
        save(tmp_path / name) if name.endswith("png") else (tmp_path / name).write_text("")
    with pytest.raises(MissingError, match="holds no image"):
        list_patches(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="nowhere"):
        list_patches(tmp_path / "nowhere")
