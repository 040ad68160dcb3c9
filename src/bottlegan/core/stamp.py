"""A checksum inside a file: whichever bit changes, of the file or of the checksum, it no longer fits.

Whoever writes a file leaves a place for it, `BLANK`, before any text that others had a hand in; `stamp` fills it in. It
is the SHA-256 of the file with that place blank. It finds accidents; who changes a file on purpose can stamp it anew.
"""

import hashlib
import re

KEY = "checksum"
"""What JSON documents call it; it is their first key."""
BLANK = f"sha256:{'0' * 64}"
PLACE = re.compile(rb"sha256:[0-9a-f]{64}")


def stamp(content: bytes) -> bytes:
    """Return the content with its checksum in the first place, which must be blank."""
    place = PLACE.search(content)
    if place is None or place[0] != BLANK.encode():
        raise ValueError(f"no place was left for a checksum; write {BLANK} before all else")
    return _fill(content, place, f"sha256:{hashlib.sha256(content).hexdigest()}")


def is_whole(content: bytes) -> bool:
    """Return whether the content is what was stamped."""
    place = PLACE.search(content)
    if place is None:
        return False
    blank = _fill(content, place, BLANK)
    return place[0] == f"sha256:{hashlib.sha256(blank).hexdigest()}".encode()


def _fill(content: bytes, place: re.Match[bytes], text: str) -> bytes:
    return content[: place.start()] + text.encode() + content[place.end() :]
