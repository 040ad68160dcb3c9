"""Files that are either whole or not there."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bottlegan.core.errors import InputError, MissingError


@contextmanager
def replacing(path: Path, *, private: bool = False, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; it takes the name `path` only if the block succeeds.

    Whatever goes wrong, an interrupt included, leaves no partial file and an older `path` as it was. Only its owner can
    read a `private` file. A `durable` one survives a power failure from when the block is left.
    """
    if not path.parent.is_dir():
        raise MissingError(f"{path.parent}: there is no such folder to write {path.name} to; create it first")
    try:
        handle, name = tempfile.mkstemp(prefix=".", suffix=path.suffix, dir=path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another place") from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files that only their owner can read; give ours the permissions any new file would get.
        if not private:
            temporary.chmod(0o666 & ~_umask())
        if durable:
            _sync(temporary)
        temporary.replace(path)
        if durable:
            sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder` to write to; it takes that name only if the block succeeds.

    There must be nothing of that name, or an empty folder.
    """
    try:
        # A folder in the temporary one: it has the permissions of any new folder, and its parent is always removed.
        with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as parent:
            temporary = Path(parent) / folder.name
            temporary.mkdir()
            yield temporary
            temporary.replace(folder)
    except InputError:
        raise  # some are errors of the system as well, and say what is wrong already
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written ({error.strerror}); choose another place, or make room"
        ) from None


@contextmanager
def keeping_private() -> Iterator[None]:
    """Let only their owner read the files (0600) and folders (0700) that this process makes in the block.

    What other packages write is private, too: it is the process's own setting that changes.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def make_folder(path: Path) -> None:
    """Create the folder `path` and those above it, unless it is there already."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be made a folder ({error.strerror}); choose another place") from None


def sync_folder(folder: Path) -> None:
    """See that the names in a folder are on disk."""
    if sys.platform != "win32":  # which has no such thing
        _sync(folder)


def _sync(path: Path) -> None:
    # Windows flushes only what may be written to.
    handle = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
