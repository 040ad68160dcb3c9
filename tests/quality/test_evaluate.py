import json
from pathlib import Path

import numpy as np
import pytest

from bottlegan.core.errors import ImageError, InputError
from bottlegan.imaging.files import Pixels, write_image
from bottlegan.quality.evaluate import evaluate_folders

RANDOM = np.random.default_rng(0)


def make_folder(path: Path, **images: Pixels) -> Path:
    path.mkdir()
    for name, levels in images.items():
        write_image(path / f"{name}.png", levels)
    return path


def noise() -> Pixels:
    return RANDOM.integers(0, 256, (24, 24, 3), dtype=np.uint8)


def test_identical_folders_are_perfect(tmp_path: Path) -> None:
    images = {name: noise() for name in "abc"}
    result = evaluate_folders(make_folder(tmp_path / "out", **images), make_folder(tmp_path / "truth", **images))
    summary = result.summary()
    assert summary["mse"]["mean"] == summary["delta_e"]["mean"] == 0
    assert summary["ssim"]["median"] == pytest.approx(1)
    assert result.fid is not None
    assert result.fid.value == pytest.approx(0, abs=1e-9)
    json.dumps(result.to_json(), allow_nan=False)


def test_each_image_is_scored_against_its_own_name(tmp_path: Path) -> None:
    white, black = np.full((8, 8, 3), 255, np.uint8), np.zeros((8, 8, 3), np.uint8)
    output = make_folder(tmp_path / "out", a=white, b=black)
    (tmp_path / "truth").mkdir()
    write_image(tmp_path / "truth" / "a.webp", white)
    write_image(tmp_path / "truth" / "b.tif", white)
    rows = evaluate_folders(output, tmp_path / "truth").rows
    assert [(row.name, row.mse) for row in rows] == [("a", 0), ("b", 1)]


def test_one_image_has_scores_but_no_fid(tmp_path: Path) -> None:
    result = evaluate_folders(make_folder(tmp_path / "out", a=noise()), make_folder(tmp_path / "truth", a=noise()))
    assert len(result.rows) == 1
    assert result.fid is None


@pytest.mark.parametrize(("ours", "theirs", "lonely"), [("ab", "a", "out/b.png"), ("a", "abc", "truth/b.png")])
def test_an_image_without_counterpart_is_named(tmp_path: Path, ours: str, theirs: str, lonely: str) -> None:
    output = make_folder(tmp_path / "out", **{name: noise() for name in ours})
    truth = make_folder(tmp_path / "truth", **{name: noise() for name in theirs})
    with pytest.raises(InputError, match=lonely):
        evaluate_folders(output, truth)


def test_images_of_different_size_are_named(tmp_path: Path) -> None:
    output, truth = make_folder(tmp_path / "out", a=noise()), make_folder(tmp_path / "truth", a=noise()[:, :20])
    with pytest.raises(ImageError, match=r"a\.png: is 24 x 24 px, but its ground truth is 20 x 24 px"):
        evaluate_folders(output, truth)


def test_the_smallest_images_have_scores(tmp_path: Path) -> None:
    pixel = np.full((1, 1, 3), 100, np.uint8)
    output, truth = make_folder(tmp_path / "out", a=pixel), make_folder(tmp_path / "truth", a=pixel)
    assert evaluate_folders(output, truth).rows[0].mse == 0
