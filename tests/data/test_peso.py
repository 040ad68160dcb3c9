from pathlib import Path

import numpy as np
import pytest

from bottlegan.core.errors import MissingError
from bottlegan.data.peso import PesoPatches, open_peso_patches
from bottlegan.imaging.files import write_image


def make_patches(root: Path, ids: list[str]) -> None:
    for folder in ("reference", "styled", "mask"):
        (root / folder).mkdir()
        for patch in ids:
            suffix = "png" if folder == "mask" else "webp"
            write_image(root / folder / f"{patch}.{suffix}", np.full((4, 4, 3), 255, np.uint8))


def test_patches_are_listed_and_read(tmp_path: Path) -> None:
    make_patches(tmp_path, ["002", "001"])
    patches = open_peso_patches(tmp_path)
    assert patches.ids == ("001", "002")
    assert patches.read_images("styled", patches.ids).shape == (2, 3, 4, 4)
    assert patches.read_mask("001").all()


@pytest.mark.parametrize("lost", ["styled/001.webp", "mask/001.png"])
def test_an_incomplete_patch_is_named(tmp_path: Path, lost: str) -> None:
    make_patches(tmp_path, ["001"])
    (tmp_path / lost).unlink()
    with pytest.raises(MissingError, match=lost):
        open_peso_patches(tmp_path)


def test_a_folder_without_patches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no PESO patches"):
        open_peso_patches(tmp_path)


def test_real_patches_match_their_masks(peso: PesoPatches) -> None:
    assert len(peso.ids) == 240
    assert peso.read_images("reference", peso.ids[:1]).shape == (1, 3, 448, 448)
    assert 0 < peso.read_mask(peso.ids[0]).mean() < 1
