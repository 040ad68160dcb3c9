import os
from pathlib import Path

import numpy as np
import pytest

from bottlegan.core.errors import ImageError, InputError, MissingError
from bottlegan.data.real import open_real_data, read_whole
from bottlegan.imaging.files import write_image

REAL = Path(os.environ.get("BOTTLEGAN_REAL", Path(__file__).parents[3] / "shared" / "data" / "real"))
HEADER = "image,mask,lab,what\n"


def write(path: Path, side: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_image(path, np.full((side, side, 3), 255, np.uint8))


def make_data(root: Path) -> None:
    for name in ("labs/b/2.png", "labs/a/1.png", "masks/a/1.png"):
        write(root / name)
    for place in range(2):
        for staining in range(3):
            write(root / "restained" / f"loc{place}_stain{staining}.png")
    rows = ('labs/b/2.png,,b,"a lab, without nuclei"\n', "labs/a/1.png,masks/a/1.png,a,nuclei\n")
    (root / "index.csv").write_text(HEADER + "".join(rows))


def test_labs_stainings_and_the_rest_are_listed(tmp_path: Path) -> None:
    make_data(tmp_path)
    write(tmp_path / "odd" / "blank.png")
    data = open_real_data(tmp_path)
    assert list(data.labs) == ["b", "a"]
    (without,), (nuclei,) = data.labs.values()
    assert (without.mask, without.shows) == (None, "a lab, without nuclei")
    assert nuclei.read().shape == (4, 4, 3)
    assert nuclei.read_nuclei().all()
    assert [image.name for image in data.images] == ["2", "1"]
    assert {place: sorted(tiles) for place, tiles in data.restained.items()} == {0: [1, 2], 1: [1, 2]}
    assert [path.name for path in data.odd] == ["blank.png"]
    assert data.slide is None


def test_only_labs_are_a_must(tmp_path: Path) -> None:
    write(tmp_path / "labs/a/1.png")
    (tmp_path / "index.csv").write_text(HEADER + "labs/a/1.png,,a,tissue\n")
    data = open_real_data(tmp_path)
    assert (data.restained, data.odd, data.slide) == ({}, (), None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with nothing, expected image, mask, lab, what"),
        ("image,lab\n", "begins with image, lab, expected"),
        (HEADER, "lists no image"),
        (HEADER + "labs/a/1.png,,,nuclei\n", "line 2 is not an image"),
        (HEADER + "labs/a/1.png,,a\n", "line 2 is not an image"),
        (HEADER + "labs/a/1.png,,a,tissue, unquoted\n", "line 2 is not an image"),
        (HEADER + "labs/a/9.png,,a,tissue\n", "9.png: is missing, but index.csv lists it"),
        (HEADER + 2 * "labs/a/1.png,,a,tissue\n", "lists two images of a called 1"),
        (HEADER + "labs/a/1.png,masks/a/9.png,a,tissue\n", "9.png: is missing, but index.csv lists it"),
    ],
)
def test_a_broken_index_is_one_line_that_names_the_file(tmp_path: Path, text: str, message: str) -> None:
    make_data(tmp_path)
    (tmp_path / "index.csv").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        open_real_data(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_an_index_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"index\.csv: is not a table"):
        open_real_data(tmp_path)


def test_a_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"index\.csv: there is no such file; give the folder"):
        open_real_data(tmp_path)


def test_a_staining_that_one_place_lacks_is_named(tmp_path: Path) -> None:
    make_data(tmp_path)
    (tmp_path / "restained" / "loc1_stain2.png").unlink()
    with pytest.raises(MissingError, match=r"loc1_stain2\.png: is missing, but other places have it"):
        open_real_data(tmp_path)


def test_a_tile_of_no_place_is_named(tmp_path: Path) -> None:
    make_data(tmp_path)
    write(tmp_path / "restained" / "mosaic.png")
    with pytest.raises(InputError, match=r"mosaic\.png: is not called like"):
        open_real_data(tmp_path)


def test_a_mask_of_another_size_and_no_mask_are_refused(tmp_path: Path) -> None:
    make_data(tmp_path)
    write(tmp_path / "masks/a/1.png", side=3)
    data = open_real_data(tmp_path)
    with pytest.raises(ImageError, match="its image is 4 x 4 px"):
        data.labs["a"][0].read_nuclei()
    with pytest.raises(MissingError, match="has no mask of its nuclei"):
        data.labs["b"][0].read_nuclei()


def test_a_slide_is_read_whole(tmp_path: Path) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    write_image(tmp_path / "slide.png", levels)
    np.testing.assert_array_equal(read_whole(tmp_path / "slide.png"), levels)


def test_the_real_data_are_whole() -> None:
    if not REAL.is_dir():
        pytest.skip(f"the real labs are not in {REAL}; set BOTTLEGAN_REAL to where they are")
    data = open_real_data(REAL)
    assert (len(data.images), len(data.labs), len(data.odd)) == (95, 17, 19)
    assert {len(tiles) for tiles in data.restained.values()} == {8}
    assert data.slide is not None
    first = next(image for image in data.images if image.mask is not None)
    assert 0 < first.read_nuclei().mean() < 1
