"""What a network predicts: the class of each pixel or of a whole patch, and which classes there are."""

from collections.abc import Sequence
from typing import Literal

from bottlegan.core.config import document
from bottlegan.core.errors import ConfigError, list_names

Kind = Literal["segmentation", "classification"]

IGNORED = 255
"""The class id, inside this package, of pixels that are ignored."""
MOST_CLASSES = 64
FINEST, COARSEST = 0.02, 100.0
"""Limits of the micrometers per pixel of microscope images."""


@document
class Task:
    """The classes that a network predicts, and how masks encode them."""

    kind: Kind = "segmentation"
    """Whether each pixel has a class, or each patch."""
    classes: tuple[str, ...] = ("other", "epithelium")
    """Names of the classes, by their id. The first is the background, which mean scores leave out."""
    ignore: int | None = None
    """Mask value of pixels that are ignored in training and in scores."""
    micrometers: float | None = None
    """Micrometers per pixel, if the same in all labs; slides are then read at this resolution."""

    def __post_init__(self) -> None:
        """Check the classes and the other fields."""
        if not 2 <= len(self.classes) <= MOST_CLASSES:
            raise ConfigError(f"task: classes must be 2 to {MOST_CLASSES} names, got {len(self.classes)}")
        if len(set(self.classes)) < len(self.classes):
            raise ConfigError(f"task: two classes have the same name ({', '.join(self.classes)}); names must differ")
        for name in self.classes:
            if not name.strip() or len(name) > 80 or not name.isprintable() or set(name) & {"/", "\\"}:
                raise ConfigError(f"task: a class cannot be called {name[:80]!r}; use printable text without slashes")
        if self.ignore is not None and not 0 <= self.ignore <= 65535:
            raise ConfigError(f"task: ignore must be a mask value, 0 to 65535, got {self.ignore}")
        if self.ignore is not None and self.kind == "classification":
            raise ConfigError("task: ignore applies to masks, and classification has none; leave it out")
        if self.micrometers is not None and not FINEST <= self.micrometers <= COARSEST:
            raise ConfigError(f"task: micrometers must be {FINEST:g} to {COARSEST:g} a pixel, got {self.micrometers:g}")

    @property
    def count(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @property
    def ids(self) -> tuple[int, ...]:
        """Mask values of the classes: 0, 1, ..., skipping the ignored value."""
        return tuple(value for value in range(self.count + 1) if value != self.ignore)[: self.count]


def list_classes(names: Sequence[str], ids: Sequence[int]) -> str:
    """Return classes and their ids in one line, for error messages."""
    shown = [f"{value} {name}" for value, name in zip(ids, names, strict=True)]
    return list_names(shown)
