"""A checksum inside a file: if any bit of the file or of the checksum changes, they no longer match.

The writer of a file puts `BLANK` before any text that others influence, and `stamp` fills it in. The checksum is the
SHA-256 of the file with that place blank. It detects accidents; anyone who edits a file on purpose can stamp it again.
"""

import hashlib
import re

KEY = "checksum"
"""Key of the checksum in JSON documents; it comes first."""
BLANK = f"sha256:{'0' * 64}"
PLACE = re.compile(rb"sha256:[0-9a-f]{64}")


def stamp(content: bytes) -> bytes:
    """Return the content with its checksum in the first place for one, which must be blank."""
    place = PLACE.search(content)
    if place is None or place[0] != BLANK.encode():
        raise ValueError(f"there is no place for a checksum; write {BLANK} before anything else")
    return _fill(content, place, f"sha256:{hashlib.sha256(content).hexdigest()}")


def is_whole(content: bytes) -> bool:
    """Return whether the content is unchanged since it was stamped."""
    place = PLACE.search(content)
    if place is None:
        return False
    blank = _fill(content, place, BLANK)
    return place[0] == f"sha256:{hashlib.sha256(blank).hexdigest()}".encode()


def _fill(content: bytes, place: re.Match[bytes], text: str) -> bytes:
    return content[: place.start()] + text.encode() + content[place.end() :]
