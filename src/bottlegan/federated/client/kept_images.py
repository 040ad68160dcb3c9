"""Normalized images, kept in a lab's state folder: a deployed lab would else normalize all of them in every message.

They are as private as what they were made of: only the lab's own account may read them, and they never leave it. A kept
image is found by the digest of the normalizer and of the image, so what is made with other styles or of another image
is never taken for it. A file is the SHA-256 of the rest, then the image as NumPy writes it.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np

from bottlegan.core.errors import InputError
from bottlegan.core.files import make_folder, replacing
from bottlegan.imaging.files import Pixels

DIGEST_BYTES = 32


class KeptImages:
    """Images that were mapped before, in a folder of their own."""

    def __init__(self, folder: Path, key: str) -> None:
        """Keep what is mapped in a way whose digest is `key` in `folder`, which is made when there is something."""
        self.folder, self.key = folder, key
        self.used: set[str] = set()

    def through(self, change: Callable[[Pixels], Pixels]) -> Callable[[Pixels], Pixels]:
        """Return the same map of images, which looks first whether it was made before."""

        def mapped(image: Pixels) -> Pixels:
            path = self.folder / self._name(image)
            self.used.add(path.name)
            found = self._read(path, image)
            if found is None:
                found = change(image)
                self._write(path, found)
            return found

        return mapped

    def forget_others(self) -> None:
        """Delete what was not asked for since this was opened: it was made of other images, or with older styles."""
        for path in self.folder.glob("*") if self.folder.is_dir() else ():
            if path.name not in self.used:
                path.unlink(missing_ok=True)

    def _name(self, image: Pixels) -> str:
        told = hashlib.sha256(f"{self.key} {image.shape} ".encode())
        told.update(image.tobytes())
        return f"{told.hexdigest()}.kept"

    def _read(self, path: Path, image: Pixels) -> Pixels | None:
        # A file that is damaged is made again.
        with suppress(OSError, ValueError, EOFError):
            content = path.read_bytes()
            if hashlib.sha256(content[DIGEST_BYTES:]).digest() != content[:DIGEST_BYTES]:
                return None
            found = np.load(BytesIO(content[DIGEST_BYTES:]), allow_pickle=False)
            if found.dtype == np.uint8 and found.shape == image.shape:
                return found
        return None

    def _write(self, path: Path, image: Pixels) -> None:
        # A disk that is full costs time, not the round.
        with suppress(OSError, InputError):
            make_folder(self.folder)
            self.folder.chmod(0o700)
            buffer = BytesIO()
            np.save(buffer, image, allow_pickle=False)
            with replacing(path, private=True) as temporary:
                temporary.write_bytes(hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue())
