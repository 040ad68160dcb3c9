import os
import tempfile
from pathlib import Path

import pytest

from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.files import make_folder, replacing, replacing_folder, write_text


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
