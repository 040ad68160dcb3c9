"""Files that must be right after any crash: on disk before anything goes on, with a checksum, and read only if it fits.

What changes all the time is kept in two generations. When the newer one is damaged, or a crash came between the two,
the older one is used, and whoever reads it is told.
"""

import json
import logging
from pathlib import Path
from typing import NamedTuple

from bottlegan.core.config import Document, parse, to_values
from bottlegan.core.errors import DamagedError, MissingError
from bottlegan.core.files import replacing, sync_folder
from bottlegan.core.stamp import BLANK, KEY, is_whole, stamp

HEADER_BYTES = 8
"""Of the length of a safetensors file's header, which comes before it."""
log = logging.getLogger(__name__)


class Kept(NamedTuple):
    """What was read, and what had to be passed over for it."""

    content: bytes
    damage: str | None
    """Why it is the older of two generations, in a sentence; None if it is the newer."""


def write_state(path: Path, content: bytes) -> None:
    """Write content with a blank place for its checksum: stamped, whole or not at all, and on disk on return."""
    with replacing(path, durable=True) as temporary:
        temporary.write_bytes(stamp(content))


def read_state(path: Path) -> bytes:
    """Return what `write_state` has written, or raise `DamagedError` if it is not that any more."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise MissingError(f"{path}: there is no such file; check the path") from None
    except OSError as error:
        raise DamagedError(f"{path}: cannot be read ({error.strerror})") from None
    if not is_whole(content):
        raise DamagedError(f"{path}: is damaged: its checksum does not fit; restore it from a backup")
    return content


def write_document(path: Path, config: object) -> None:
    """Write a document as JSON, like any state."""
    write_state(path, to_stamped_json(config))


def read_document(cls: type[Document], path: Path) -> Document:
    """Read a document that `write_document` has written."""
    return from_stamped_json(cls, read_state(path), path)


def to_stamped_json(config: object) -> bytes:
    """Return a document as JSON with a blank place for a checksum."""
    values = {KEY: BLANK, **to_values(config)}
    return f"{json.dumps(values, indent=2, allow_nan=False)}\n".encode()


def from_stamped_json(cls: type[Document], content: bytes, path: Path) -> Document:
    """Return the document in stamped JSON; `path` is named in errors."""
    values = json.loads(content)
    del values[KEY]
    return parse(cls, values, str(path))


def write_generation(path: Path, content: bytes) -> None:
    """Write state, and keep what it replaces as the older generation."""
    with replacing(path, durable=True) as temporary:
        temporary.write_bytes(stamp(content))
        if path.exists():
            path.replace(find_older(path))
            sync_folder(path.parent)


def read_generation(path: Path, remedy: str) -> Kept | None:
    """Return the newer generation, else the older one and why; None if there is neither.

    Raises:
        DamagedError: Neither can be used; `remedy` is what to do then.
    """
    faults = []
    for each in (path, find_older(path)):
        try:
            content = read_state(each)
        except MissingError:
            continue
        except DamagedError as error:
            faults.append(str(error).partition(";")[0])
            continue
        if each == path:
            return Kept(content, None)
        damage = f"{faults[0] if faults else f'{path}: is missing'}; the generation before it, {each.name}, is used"
        log.warning("%s", damage)
        return Kept(content, damage)
    if faults:
        raise DamagedError(f"{'; '.join(faults)}; {remedy}")
    return None


def read_metadata(content: bytes) -> dict[str, str]:
    """Return what a safetensors file that is whole says of itself; its library gives that of files on disk only."""
    length = int.from_bytes(content[:HEADER_BYTES], "little")
    metadata: dict[str, str] = json.loads(content[HEADER_BYTES : HEADER_BYTES + length]).get("__metadata__", {})
    return metadata


def find_older(path: Path) -> Path:
    """Return where the generation before the one at `path` is."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def forget_generations(path: Path) -> None:
    """Delete both generations."""
    for each in (path, find_older(path)):
        each.unlink(missing_ok=True)
