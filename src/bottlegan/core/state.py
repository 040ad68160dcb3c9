"""Files that must survive any crash: on disk before work continues, with a checksum that is verified on reading.

State that changes often is kept in two generations. If the newer one is damaged, or a crash came between the two, the
older one is used and the caller learns why.
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
"""Size of the number, before a safetensors file's header, that holds the header's length."""
log = logging.getLogger(__name__)


class Kept(NamedTuple):
    """The content that was read, and why it is not the newest, if so."""

    content: bytes
    damage: str | None
    """One sentence on why the older generation was used; None for the newer one."""


def write_state(path: Path, content: bytes) -> None:
    """Stamp content, which must have a blank place for its checksum, and write it whole or not at all, to disk."""
    with replacing(path, durable=True) as temporary:
        temporary.write_bytes(stamp(content))


def read_state(path: Path) -> bytes:
    """Return what `write_state` wrote, or raise `DamagedError` if it has changed since."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise MissingError(f"{path}: there is no such file; check the path") from None
    except OSError as error:
        raise DamagedError(f"{path}: cannot be read ({error.strerror})") from None
    if not is_whole(content):
        raise DamagedError(f"{path}: is damaged: its checksum does not match; restore it from a backup")
    return content


def write_document(path: Path, config: object) -> None:
    """Write a document as JSON, in the same way as other state."""
    write_state(path, to_stamped_json(config))


def read_document(cls: type[Document], path: Path) -> Document:
    """Read a document that `write_document` wrote."""
    return from_stamped_json(cls, read_state(path), path)


def to_stamped_json(config: object) -> bytes:
    """Return a document as JSON with a blank place for a checksum."""
    values = {KEY: BLANK, **to_values(config)}
    return f"{json.dumps(values, indent=2, allow_nan=False)}\n".encode()


def from_stamped_json(cls: type[Document], content: bytes, path: Path) -> Document:
    """Return the document in stamped JSON; errors name `path`."""
    values = json.loads(content)
    del values[KEY]
    return parse(cls, values, str(path))


def write_generation(path: Path, content: bytes) -> None:
    """Write state, and keep the state that it replaces as the older generation."""
    with replacing(path, durable=True) as temporary:
        temporary.write_bytes(stamp(content))
        if path.exists():
            path.replace(find_older(path))
            sync_folder(path.parent)


def read_generation(path: Path, remedy: str) -> Kept | None:
    """Return the newer generation, or else the older one with the reason; None if there is neither.

    Raises:
        DamagedError: Neither can be used; the message ends with `remedy`.
    """
    faults = []
    for generation in (path, find_older(path)):
        try:
            content = read_state(generation)
        except MissingError:
            continue
        except DamagedError as error:
            faults.append(str(error).partition(";")[0])
            continue
        if generation == path:
            return Kept(content, None)
        damage = f"{faults[0] if faults else f'{path}: is missing'}; using the generation before it, {generation.name}"
        log.warning("%s", damage)
        return Kept(content, damage)
    if faults:
        raise DamagedError(f"{'; '.join(faults)}; {remedy}")
    return None


def read_metadata(content: bytes) -> dict[str, str]:
    """Return the metadata of an intact safetensors file held in memory; its library reads files on disk only."""
    length = int.from_bytes(content[:HEADER_BYTES], "little")
    metadata: dict[str, str] = json.loads(content[HEADER_BYTES : HEADER_BYTES + length]).get("__metadata__", {})
    return metadata


def find_older(path: Path) -> Path:
    """Return the path of the older generation of `path`."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def forget_generations(path: Path) -> None:
    """Delete both generations."""
    for generation in (path, find_older(path)):
        generation.unlink(missing_ok=True)
