import os
from pathlib import Path

import numpy as np
import pytest

from bottlegan.colormap.table import Convert
from bottlegan.core.errors import InputError, MissingError
from bottlegan.imaging.files import read_image, write_image
from bottlegan.normalize.choice import RefusedError
from bottlegan.normalize.folder import map_files, pair_files

GRAY = np.full((6, 8, 3), 100, np.uint8)


def run(source: Path, target: Path, convert: Convert) -> None:
    assert not map_files(pair_files(source, target), lambda _: convert)


def test_an_image_becomes_an_image(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", GRAY)
    run(tmp_path / "a.png", tmp_path / "b.tif", lambda x: 255 - x)
    assert (read_image(tmp_path / "b.tif") == 155).all()


def test_a_folder_becomes_a_folder_of_the_same_names(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.png", "b.webp", "b_mask.png"):
        write_image(tmp_path / "in" / name, GRAY)
    run(tmp_path / "in", tmp_path / "new" / "out", lambda x: x)
    assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == ["a.png", "b.webp", "b_mask.png"]
    assert (tmp_path / "new" / "out" / "b_mask.png").read_bytes() == (tmp_path / "in" / "b_mask.png").read_bytes()


def test_an_image_that_cannot_be_read_is_reported_and_the_others_are_written(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.png", "b.png", "c.png"):
        write_image(tmp_path / "in" / name, GRAY)
    (tmp_path / "in" / "b.png").write_bytes(b"no image")
    failures = map_files(pair_files(tmp_path / "in", tmp_path / "out"), lambda _: lambda x: x)
    assert [str(error).partition(":")[0] for error in failures] == [str(tmp_path / "in" / "b.png")]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.png", "c.png"]


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_a_mask_that_cannot_be_read_is_reported_and_its_image_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.png", "b.png"):
        write_image(tmp_path / "in" / name, GRAY)
    (tmp_path / "in" / "a_mask.png").symlink_to("a_mask.png")
    failures = map_files(pair_files(tmp_path / "in", tmp_path / "out"), lambda _: lambda x: x)
    assert [str(error).partition(":")[0] for error in failures] == [str(tmp_path / "in" / "a_mask.png")]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["b.png"]


@pytest.mark.parametrize("name", ["a.png", "."])
def test_the_input_is_never_overwritten(tmp_path: Path, name: str) -> None:
    write_image(tmp_path / "a.png", GRAY)
    with pytest.raises(InputError, match="is an input"):
        pair_files(tmp_path / name, tmp_path / name)
    assert (read_image(tmp_path / "a.png") == GRAY).all()


def test_an_image_needs_an_image_name_to_go_to(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", GRAY)
    with pytest.raises(InputError, match="not the name of an image"):
        pair_files(tmp_path / "a.png", tmp_path / "out")


def test_where_nothing_can_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_image(tmp_path / "in" / "a.png", GRAY)
    with pytest.raises(MissingError, match=r"gone: there is no such folder to write b\.png to"):
        pair_files(tmp_path / "in" / "a.png", tmp_path / "gone" / "b.png")
    write_image(tmp_path / "file.png", GRAY)
    with pytest.raises(InputError, match=r"file\.png: cannot be created"):
        pair_files(tmp_path / "in", tmp_path / "file.png")


def test_no_folder_is_made_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_image(tmp_path / "in" / "a.png", GRAY)

    def refuse(image: Path) -> Convert:
        raise RefusedError(f"{image}: refused")

    assert len(map_files(pair_files(tmp_path / "in", tmp_path / "out"), refuse)) == 1
    assert not (tmp_path / "out").exists()


def test_what_is_refused_is_given_back_and_not_written(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in "abc":
        write_image(tmp_path / "in" / f"{name}.png", GRAY)
    asked: list[str] = []

    def choose(image: Path) -> Convert:
        asked.append(image.name)
        if image.stem == "b":
            raise RefusedError(f"{image}: refused")
        return lambda levels: 255 - levels

    (refused,) = map_files(pair_files(tmp_path / "in", tmp_path / "out"), choose)
    assert str(refused) == f"{tmp_path / 'in' / 'b.png'}: refused"
    assert asked == ["a.png", "b.png", "c.png"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.png", "c.png"]
    assert (read_image(tmp_path / "out" / "c.png") == 155).all()
