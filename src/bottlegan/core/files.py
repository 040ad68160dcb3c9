"""Files and folders: checked before they are read, and written whole or not at all."""

import errno
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from bottlegan.core.errors import InputError, MissingError

if sys.platform != "win32":
    import fcntl


@contextmanager
def replacing(path: Path, *, private: bool = False, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to. It is renamed to `path` only if the block succeeds.

    Any failure, including an interrupt, leaves no partial file and does not touch an existing `path`. Only the owner
    can read a `private` file. A `durable` file survives a power failure once the block has ended.
    """
    temporary = None
    try:
        check_writable(path)
        handle, name = tempfile.mkstemp(prefix=".", suffix=path.suffix, dir=path.parent)
        temporary = Path(name)
        os.close(handle)
        yield temporary
        # mkstemp makes files that only their owner can read; give this one the permissions any new file would get.
        if not private:
            temporary.chmod(0o666 & ~_umask())
        if durable:
            _sync(temporary)
        temporary.replace(path)
        if durable:
            sync_folder(path.parent)
    except InputError:
        raise  # some are errors of the system as well, and say what is wrong already
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({_explain(error)}); choose another place, or make room") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextmanager
def locked(file: BinaryIO) -> Iterator[None]:
    """Keep other processes out of such a block for the same file. Does nothing on Windows, which has no such lock."""
    if sys.platform == "win32":
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def check_readable(path: Path) -> None:
    """Refuse an input path that does not exist, or is neither a file nor a folder: reading a pipe would hang."""
    if path.is_file() or path.is_dir():
        return
    if path.exists():
        raise InputError(f"{path}: is a device or a pipe, neither a file nor a folder; give a file")
    raise MissingError(f"{path}: there is no such file or folder; check the path")


def check_writable(path: Path) -> None:
    """Refuse a path where no file can be written: no such folder, a folder itself, a device, or a loop of links."""
    if not path.parent.is_dir():
        raise MissingError(f"{path.parent}: there is no such folder to write {path.name} to; create it first")
    if path.is_dir():
        raise InputError(f"{path}: is a folder, but a file is written; add a file name")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is a device or a pipe, not a file; choose another place")
    if path.is_symlink() and not path.exists() and _is_loop(path):
        raise InputError(f"{path}: is a link that leads back to itself; choose another place")


def check_folder(path: Path) -> None:
    """Refuse a path that is not a folder and cannot become one, before anything is computed."""
    if path.is_dir():
        return
    existing = next(parent for parent in (path, *path.absolute().parents) if os.path.lexists(parent))
    if not existing.is_dir():
        raise InputError(f"{path}: cannot be created, because {existing} is not a folder; choose another place")


def check_apart(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """Refuse outputs that are inputs, or that would overwrite a file in an input folder."""
    sources = [(source, os.path.realpath(source)) for source in inputs if source is not None]
    for output in outputs:
        if output is None:
            continue
        place = os.path.realpath(output)
        for source, real_source in sources:
            if place == real_source:
                raise InputError(f"{output}: is an input, and inputs are never overwritten; name another output")
            if os.path.isfile(place) and Path(real_source) in Path(place).parents:  # noqa: PTH113 - resolve() loops
                raise InputError(f"{output}: is a file in the input {source}, and would be overwritten; name another")


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder` to write to. It is renamed to `folder` only if the block succeeds.

    `folder` must not exist, or must be empty.
    """
    try:
        # A folder inside the temporary one has the permissions of any new folder; its parent is always removed.
        with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as parent:
            temporary = Path(parent) / folder.name
            temporary.mkdir()
            yield temporary
            temporary.replace(folder)
    except InputError:
        raise  # some are errors of the system as well, and say what is wrong already
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written ({_explain(error)}); choose another place, or make room"
        ) from None


def keeping_private() -> AbstractContextManager[None]:
    """Make files (0600) and folders (0700) that this process creates in the block readable by their owner only."""
    return using_umask(0o077)


@contextmanager
def using_umask(mask: int) -> Iterator[None]:
    """Take these permissions away from all files that this process creates in the block, also in other packages."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def make_folder(path: Path) -> None:
    """Create the folder `path` and its parents, unless it exists already."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be created ({_explain(error)}); choose another place") from None


def _is_loop(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _explain(error: OSError) -> str:
    return error.strerror or str(error)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to disk."""
    if sys.platform != "win32":  # Windows cannot sync a folder
        _sync(folder)


def _sync(path: Path) -> None:
    # Windows flushes only files that are open for writing.
    handle = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
