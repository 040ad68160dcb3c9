import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bottlegan.federated.client.kept_images import KeptImages
from bottlegan.federated.client.staining import digest_map
from bottlegan.imaging.files import Pixels
from bottlegan.models.document import PRIOR
from bottlegan.models.weights import read_weights
from bottlegan.normalize.normalizer import Normalizer


class Invert:
    """A map of images that counts its calls."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, image: Pixels) -> Pixels:
        self.asked += 1
        return 255 - image


@pytest.fixture
def image() -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_an_image_is_mapped_once_whatever_process_asks(image: Pixels, tmp_path: Path) -> None:
    invert = Invert()
    for _ in range(3):
        found = KeptImages(tmp_path / "kept", "a").through(invert)(image)
        assert np.array_equal(found, 255 - image)
    assert invert.asked == 1


def test_only_the_labs_own_account_can_read_them(image: Pixels, tmp_path: Path) -> None:
    KeptImages(tmp_path / "kept", "a").through(Invert())(image)
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in files(tmp_path / "kept")] == [0o600]


def test_other_styles_and_other_images_are_mapped_anew(image: Pixels, tmp_path: Path) -> None:
    invert = Invert()
    KeptImages(tmp_path, "a").through(invert)(image)
    KeptImages(tmp_path, "b").through(invert)(image)
    other = image.copy()
    other[0, 0, 0] ^= 1
    KeptImages(tmp_path, "a").through(invert)(other)
    KeptImages(tmp_path, "a").through(invert)(image.reshape(5, 7, 3))
    assert invert.asked == 4


def test_what_is_no_longer_asked_for_is_deleted(image: Pixels, tmp_path: Path) -> None:
    KeptImages(tmp_path, "a").through(Invert())(image)
    old = files(tmp_path)
    kept = KeptImages(tmp_path, "b")
    kept.through(Invert())(image)
    kept.forget_others()
    assert len(files(tmp_path)) == 1
    assert files(tmp_path) != old
    KeptImages(tmp_path / "none", "a").forget_others()


@pytest.mark.parametrize("damage", [b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_a_damaged_file_is_made_again(damage: bytes, image: Pixels, tmp_path: Path) -> None:
    invert = Invert()
    KeptImages(tmp_path, "a").through(invert)(image)
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    for content in (damage, whole[:-3]):
        path.write_bytes(content)
        assert np.array_equal(KeptImages(tmp_path, "a").through(invert)(image), 255 - image)
        assert path.read_bytes() == whole
    np.save(path, np.zeros((2, 2), np.float32))
    assert np.array_equal(KeptImages(tmp_path, "a").through(invert)(image), 255 - image)


def test_a_place_that_cannot_be_written_costs_time_only(image: Pixels, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert np.array_equal(KeptImages(tmp_path / "file" / "x", "a").through(Invert())(image), 255 - image)


def test_the_digest_is_of_the_labs_own_style_and_of_the_network_only() -> None:
    prior = read_weights(PRIOR)
    codes = {name: np.full(prior.document.model.code_size, k, np.float32) for k, name in enumerate("abc")}
    two, three = (prior.with_styles({name: codes[name] for name in names}) for names in ("ab", "abc"))
    assert digest_map(Normalizer.from_model(two, "a")) == digest_map(Normalizer.from_model(three, "a"))
    assert digest_map(Normalizer.from_model(two, "a")) != digest_map(Normalizer.from_model(two, "b"))
    name = next(name for name in prior.arrays if name.startswith("normalizer"))
    changed = replace(two, arrays={**two.arrays, name: two.arrays[name] + 1})
    assert digest_map(Normalizer.from_model(changed, "a")) != digest_map(Normalizer.from_model(two, "a"))


def test_a_changed_pixel_is_noticed(image: Pixels, tmp_path: Path) -> None:
    invert = Invert()
    KeptImages(tmp_path, "a").through(invert)(image)
    (path,) = files(tmp_path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert np.array_equal(KeptImages(tmp_path, "a").through(invert)(image), 255 - image)
    assert invert.asked == 2
