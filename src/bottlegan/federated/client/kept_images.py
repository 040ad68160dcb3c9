"""Normalized images, cached in a lab's state folder: otherwise a deployed lab would normalize all images per message.

They are as private as the originals: only the lab's own account may read them, and they never leave the lab. A file is
named after the digests of the normalizer and the original image, so it never stands in for another style or image. Its
content is the SHA-256 of the rest, then the image as NumPy writes it.
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
    """Mapped images in a folder of their own."""

    def __init__(self, folder: Path, key: str) -> None:
        """Keep images in `folder`, created when needed, that were mapped by a map with the digest `key`."""
        self.folder, self.key = folder, key
        self.used: set[str] = set()

    def through(self, change: Callable[[Pixels], Pixels]) -> Callable[[Pixels], Pixels]:
        """Return the same map, which first looks for a kept result."""

        def mapped(image: Pixels) -> Pixels:
            path = self.folder / self._name(image)
            self.used.add(path.name)
            output = self._read(path, image)
            if output is None:
                output = change(image)
                self._write(path, output)
            return output

        return mapped

    def forget_others(self) -> None:
        """Delete files that were not used since this was opened: they come from other images or older styles."""
        for path in self.folder.glob("*") if self.folder.is_dir() else ():
            if path.name not in self.used:
                path.unlink(missing_ok=True)

    def _name(self, image: Pixels) -> str:
        digest = hashlib.sha256(f"{self.key} {image.shape} ".encode())
        digest.update(image.tobytes())
        return f"{digest.hexdigest()}.kept"

    def _read(self, path: Path, image: Pixels) -> Pixels | None:
        # A damaged file is made again.
        with suppress(OSError, ValueError, EOFError):
            content = path.read_bytes()
            if hashlib.sha256(content[DIGEST_BYTES:]).digest() != content[:DIGEST_BYTES]:
                return None
            kept = np.load(BytesIO(content[DIGEST_BYTES:]), allow_pickle=False)
            if kept.dtype == np.uint8 and kept.shape == image.shape:
                return kept
        return None

    def _write(self, path: Path, image: Pixels) -> None:
        # A full disk costs time, not the round.
        with suppress(OSError, InputError):
            make_folder(self.folder)
            self.folder.chmod(0o700)
            buffer = BytesIO()
            np.save(buffer, image, allow_pickle=False)
            with replacing(path, private=True) as temporary:
                temporary.write_bytes(hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue())
