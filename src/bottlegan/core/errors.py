"""Every error that this package raises on purpose.

    BottleGANError
    ├── FederationError (RuntimeError)        too few clients took part to continue
    ├── WaitingError                          nothing is wrong, but others must answer first; exits with status 3
    └── InputError (ValueError)               the user's input cannot be used; the command line exits with status 2
        ├── MissingError (FileNotFoundError)  a file or folder does not exist, or holds nothing usable
        ├── ImageError                        a file is not an image that can be used
        │   └── TileError                     a part of a slide cannot be read
        ├── ConfigError                       a configuration or document has a wrong, missing or unknown key
        ├── DamagedError                      a file written by BottleGAN has changed since
        └── ModelFileError                    a file is not a model that can be used

A message is one line that says what is wrong, what was found, and what to do about it. Each class also inherits from
the built-in exception that a caller would expect, so `except ValueError` works without importing this module.
"""

from collections.abc import Sequence


class BottleGANError(Exception):
    """Base of all errors raised on purpose."""


class FederationError(BottleGANError, RuntimeError):
    """Too few clients took part to continue."""


class WaitingError(BottleGANError):
    """Some clients have not answered yet. Nothing is lost: running the same command again continues."""

    def __init__(self, missing: Sequence[str]) -> None:
        """Take the names of the clients that have not answered."""
        super().__init__(f"waiting for {', '.join(missing)}")
        self.missing = tuple(missing)


class InputError(BottleGANError, ValueError):
    """The user's input cannot be used."""


class MissingError(InputError, FileNotFoundError):
    """A file or folder does not exist, or holds nothing usable."""


class ImageError(InputError):
    """A file is not an image that can be used."""


class TileError(ImageError):
    """Part of a slide cannot be read, although other parts can."""


class ConfigError(InputError):
    """A configuration or document has a wrong, missing or unknown key."""


class DamagedError(InputError):
    """A file written by BottleGAN has changed since: its checksum does not match."""


class ModelFileError(InputError):
    """A file is not a model that can be used."""


def list_names(names: Sequence[str]) -> str:
    """Return names for a message, or only the first ones if there are many."""
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
