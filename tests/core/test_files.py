import os
import tempfile
from pathlib import Path

import pytest

from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.files import (
    check_apart,
    check_folder,
    check_readable,
    keeping_private,
    make_folder,
    replacing,
    replacing_folder,
    write_text,
)


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    with replacing(target) as temporary:
        temporary.write_text("half")
        assert not target.exists()
    assert target.read_text() == "half"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "out.txt"
    write_text(target, "old")

    def fail() -> None:
        with replacing(target) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    write_text(tmp_path / "ours.txt", "")
    (tmp_path / "plain.txt").write_text("")
    assert (tmp_path / "ours.txt").stat().st_mode == (tmp_path / "plain.txt").stat().st_mode


def test_a_private_file_is_for_its_owner(tmp_path: Path) -> None:
    with replacing(tmp_path / "secret", private=True) as temporary:
        temporary.write_text("x")
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_what_is_made_in_a_private_block_is_for_its_owner(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with keeping_private():
            make_folder(tmp_path / "state")
            (tmp_path / "state" / "log").write_text("")
        (tmp_path / "plain").write_text("")
    finally:
        os.umask(before)
    modes = [
        path.stat().st_mode & 0o777 for path in (tmp_path / "state", tmp_path / "state" / "log", tmp_path / "plain")
    ]
    assert modes == [0o700, 0o600, 0o644]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="nowhere"):
        write_text(tmp_path / "nowhere" / "out.txt", "")


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        make_folder(tmp_path / "file" / "deeper")


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)  # root, who runs tests in containers, may write anywhere
    with pytest.raises(InputError, match=r"out\.txt: cannot be written \(Permission denied\)"):
        write_text(tmp_path / "out.txt", "")


def test_a_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    def fail(kind: type[BaseException]) -> None:
        with replacing_folder(tmp_path / "new") as temporary:
            (temporary / "a.txt").write_text("half")
            raise kind(28, "No space left on device")

    for kind, told in ((KeyboardInterrupt, KeyboardInterrupt), (MissingError, MissingError), (OSError, InputError)):
        with pytest.raises(told):
            fail(kind)
        assert not list(tmp_path.iterdir())
    (tmp_path / "new").mkdir()
    with replacing_folder(tmp_path / "new") as temporary:
        (temporary / "a.txt").write_text("whole")
        assert not list((tmp_path / "new").iterdir())
    assert [each.name for each in tmp_path.iterdir()] == ["new"]
    assert (tmp_path / "new" / "a.txt").read_text() == "whole"
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o777 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in the file system here")
def test_a_pipe_is_neither_read_nor_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="a device or a pipe"):
        check_readable(tmp_path / "pipe")
    with pytest.raises(InputError, match="a device or a pipe"):
        write_text(tmp_path / "pipe", "")


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="leads back to itself"):
        write_text(tmp_path / "loop", "")
    with pytest.raises(MissingError, match="no such file"):
        check_readable(tmp_path / "loop")


def test_a_folder_is_not_overwritten_and_a_name_can_be_too_long(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        write_text(tmp_path, "")
    with pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / ("x" * 300), "")
    assert not list(tmp_path.iterdir())


def test_an_output_is_never_an_input(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("a")
    (tmp_path / "link").symlink_to(tmp_path / "in" / "a")
    check_apart([tmp_path / "in" / "new", tmp_path / "out", None], [tmp_path / "in", None])
    for output in (tmp_path / "in", tmp_path / "in" / "a", tmp_path / "link"):
        with pytest.raises(InputError, match="input"):
            check_apart([output], [tmp_path / "in"])


def test_a_file_is_no_place_for_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_folder(tmp_path)
    check_folder(tmp_path / "a" / "b")
    for path in (tmp_path / "file", tmp_path / "file" / "a"):
        with pytest.raises(InputError, match="cannot be created"):
            check_folder(path)
