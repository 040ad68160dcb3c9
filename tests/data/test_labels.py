from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bottlegan.core.errors import ImageError, InputError, MissingError
from bottlegan.core.task import IGNORED, Task
from bottlegan.data.labels import list_labels, read_labeled
from bottlegan.imaging.files import read_values, write_values

THREE = Task(classes=("other", "benign", "tumor"))
PATCHES = Task(kind="classification", classes=("benign", "tumor"))


def put(folder: Path, name: str, size: tuple[int, int] = (6, 4)) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (200, 100, 150)).save(folder / name)
    return folder / name


def put_mask(folder: Path, values: list[list[int]], task: Task = THREE) -> np.ndarray:
    array = np.array(values)
    put(folder, "a.png", (array.shape[1], array.shape[0]))
    kind = np.uint8 if array.max() < 256 else np.uint16
    Image.fromarray(array.astype(kind)).save(folder / "a_mask.png")
    return read_labeled(folder, task)[0].truth


def test_masks_hold_class_ids(tmp_path: Path) -> None:
    assert put_mask(tmp_path, [[0, 1, 2], [2, 1, 0]]).tolist() == [[0, 1, 2], [2, 1, 0]]


@pytest.mark.parametrize("ignore", [255, 3, 60000])
def test_pixels_can_be_ignored(tmp_path: Path, ignore: int) -> None:
    task = Task(classes=THREE.classes, ignore=ignore)
    assert put_mask(tmp_path, [[0, ignore, 2]], task).tolist() == [[0, IGNORED, 2]]


def test_ids_begin_after_an_ignored_zero(tmp_path: Path) -> None:
    assert put_mask(tmp_path, [[0, 1, 2]], Task(ignore=0)).tolist() == [[IGNORED, 0, 1]]


@pytest.mark.parametrize("value", [1, 7, 255])
def test_of_two_classes_any_value_is_the_second(tmp_path: Path, value: int) -> None:
    assert put_mask(tmp_path, [[0, value]], Task()).tolist() == [[0, 1]]


def test_an_unknown_id_is_named_with_the_file_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        ImageError, match=r"a_mask\.png: holds 7, which is no class id; .*0 other, 1 benign, 2 tumor.*ignore = 7"
    ):
        put_mask(tmp_path, [[0, 1, 7]])
    with pytest.raises(ImageError, match=r"holds 2, which is no class id"):
        put_mask(tmp_path, [[0, 1, 2]], Task())


def test_a_mask_of_another_size_is_refused_with_both_sizes(tmp_path: Path) -> None:
    put_mask(tmp_path, [[0, 1]])
    put(tmp_path, "a.png", (8, 6))
    with pytest.raises(ImageError, match=r"a_mask\.png: is 2 x 1 px, but its image is 8 x 6 px"):
        read_labeled(tmp_path, THREE)


def test_a_missing_mask_says_where_to_put_it(tmp_path: Path) -> None:
    put(tmp_path, "a.png")
    with pytest.raises(MissingError, match=r"a_mask\.png"):
        read_labeled(tmp_path, THREE)


def test_a_mask_with_a_palette_is_read_by_its_ids(tmp_path: Path) -> None:
    values = np.array([[0, 1, 2]], np.uint8)
    colors = np.array([[9, 9, 9], [200, 0, 0], [0, 0, 200]], np.uint8)
    write_values(tmp_path / "m.png", values, colors)
    assert np.array_equal(read_values(tmp_path / "m.png"), values)
    with Image.open(tmp_path / "m.png") as image:
        assert image.convert("RGB").getpixel((1, 0)) == (200, 0, 0)
    write_values(tmp_path / "g.png", 100 * values)
    assert np.array_equal(read_values(tmp_path / "g.png"), [[0, 100, 200]])


def test_floats_are_no_mask(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "m.tiff")
    with pytest.raises(ImageError, match="whole numbers"):
        read_values(tmp_path / "m.tiff")


def test_patches_are_in_a_folder_a_class(tmp_path: Path) -> None:
    for name, folder in (("x.png", "benign"), ("y.png", "tumor"), ("z.png", "tumor")):
        put(tmp_path / folder, name)
    assert list(list_labels(tmp_path, PATCHES).values()) == [0, 1, 1]
    read = read_labeled(tmp_path, PATCHES)
    assert [int(each.truth) for each in read] == [0, 1, 1]
    assert read[0].image.shape == (4, 6, 3)
    assert read[0].truth.shape == ()


def test_or_in_a_table(tmp_path: Path) -> None:
    for name in ("x.png", "y.png"):
        put(tmp_path, name)
    (tmp_path / "labels.csv").write_text("label,image\ntumor,x.png\nbenign,y.png\n")
    assert list_labels(tmp_path, PATCHES) == {tmp_path / "x.png": 1, tmp_path / "y.png": 0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "image,label\nx.png,tumour\n",
            r"labels\.csv: there is no class called 'tumour'; the classes are benign, tumor",
        ),
        ("image,label\nq.png,tumor\n", r"line 2 names q\.png, which is no image"),
        ("image,label\n../x.png,tumor\n", "which is no image"),
        ("image,label\n/etc/passwd,tumor\n", "which is no image"),
        ("image,label\nx.png,tumor\nx.png,tumor\n", "twice"),
        ("file,class\nx.png,tumor\n", "give the columns image and label"),
        ("image,label\n", "names no image"),
        ("", "names no image"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    put(tmp_path, "x.png")
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        list_labels(tmp_path, PATCHES)


def test_a_table_that_is_no_text_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "x.png")
    (tmp_path / "labels.csv").write_bytes(b"\xff\xfe\x00image")
    with pytest.raises(InputError, match="save it as CSV in UTF-8"):
        list_labels(tmp_path, PATCHES)


def test_folders_must_be_classes(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"neither labels\.csv nor a folder for each class; the classes are benign"):
        list_labels(tmp_path, PATCHES)
    put(tmp_path / "tumour", "x.png")
    with pytest.raises(InputError, match="no class called 'tumour'"):
        list_labels(tmp_path, PATCHES)


def test_images_beside_the_folders_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "tumor", "x.png")
    put(tmp_path, "y.png")
    with pytest.raises(InputError, match=r"y\.png: lies beside the folders"):
        list_labels(tmp_path, PATCHES)
    with pytest.raises(MissingError, match="no such folder"):
        list_labels(tmp_path / "nowhere", PATCHES)
