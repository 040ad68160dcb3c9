"""Every error that this package raises on purpose.

    BottleGANError
    ├── FederationError (RuntimeError)        too few clients took part to go on
    ├── WaitingError                          nothing is wrong, but others must answer first; exits with status 3
    └── InputError (ValueError)               what the user gave cannot be used; the command line exits with status 2
        ├── MissingError (FileNotFoundError)  a file or folder is not there, or holds nothing usable
        ├── ImageError                        a file is not an image we can work with
        │   └── TileError                     a part of a slide cannot be read
        ├── ConfigError                       a configuration or document has a wrong, missing or unknown key
        ├── DamagedError                      a file of ours is not what we wrote any more
        └── ModelFileError                    a file is not a model that we can use

A message is one line that says what is wrong, what was found, and what to do about it. Each class also inherits the
builtin that a caller would expect, so `except ValueError` works without importing this module.
"""

from collections.abc import Sequence


class BottleGANError(Exception):
    """Base of all errors raised on purpose."""


class FederationError(BottleGANError, RuntimeError):
    """Too few clients took part to go on."""


class WaitingError(BottleGANError):
    """Clients that were asked have not answered yet. All is kept, and the same command goes on."""

    def __init__(self, missing: Sequence[str]) -> None:
        """Take the names of those that have not answered."""
        super().__init__(f"waiting for {', '.join(missing)}")
        self.missing = tuple(missing)


class InputError(BottleGANError, ValueError):
    """What the user gave cannot be used."""


class MissingError(InputError, FileNotFoundError):
    """A file or folder is not there, or holds nothing usable."""


class ImageError(InputError):
    """A file is not an image that we can work with."""


class TileError(ImageError):
    """A part of a slide cannot be read, though others can."""


class ConfigError(InputError):
    """A configuration or document has a wrong, missing or unknown key."""


class DamagedError(InputError):
    """A file of ours is not what we wrote any more: its checksum does not fit."""


class ModelFileError(InputError):
    """A file is not a model that we can use."""
