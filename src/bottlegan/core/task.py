"""What a network is to tell: the class of each pixel, or of a whole patch; and which classes there are."""

from collections.abc import Sequence
from typing import Literal

from bottlegan.core.config import document
from bottlegan.core.errors import ConfigError

Kind = Literal["segmentation", "classification"]

IGNORED = 255
"""The class id, inside this package, of pixels that do not count."""
MOST_CLASSES = 64
FINEST, COARSEST = 0.02, 100.0
"""Micrometers a pixel between which a microscope's images are."""


@document
class Task:
    """Which classes a network tells apart, and how they are written in masks."""

    kind: Kind = "segmentation"
    """Of each pixel, or of a whole patch."""
    classes: tuple[str, ...] = ("other", "epithelium")
    """Names of the classes, by their id. The first is the background: it is not in the mean of scores over classes."""
    ignore: int | None = None
    """Value of a mask's pixels that count neither in training nor in scores."""
    micrometers: float | None = None
    """Micrometers a pixel of the images, if all labs have the same: a slide is then read at this resolution."""

    def __post_init__(self) -> None:
        """Check that the classes can be told apart."""
        if not 2 <= len(self.classes) <= MOST_CLASSES:
            raise ConfigError(f"task: classes must be 2 to {MOST_CLASSES} names, got {len(self.classes)}")
        if len(set(self.classes)) < len(self.classes):
            raise ConfigError(f"task: two classes have the same name ({', '.join(self.classes)}); names must differ")
        for name in self.classes:
            if not name.strip() or len(name) > 80 or not name.isprintable() or set(name) & {"/", "\\"}:
                raise ConfigError(f"task: a class cannot be called {name[:80]!r}; use printable text without slashes")
        if self.ignore is not None and not 0 <= self.ignore <= 65535:
            raise ConfigError(f"task: ignore must be a value of a mask's pixels, 0 to 65535, got {self.ignore}")
        if self.ignore is not None and self.kind == "classification":
            raise ConfigError("task: ignore is about pixels of masks, and patches have none; leave it out")
        if self.micrometers is not None and not FINEST <= self.micrometers <= COARSEST:
            raise ConfigError(f"task: micrometers a pixel must be {FINEST:g} to {COARSEST:g}, got {self.micrometers:g}")

    @property
    def count(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @property
    def ids(self) -> tuple[int, ...]:
        """Values of a mask's pixels that stand for the classes: 0, 1, ... but for the one that is ignored."""
        return tuple(value for value in range(self.count + 1) if value != self.ignore)[: self.count]


def list_classes(names: Sequence[str], ids: Sequence[int]) -> str:
    """Return classes and their ids in one line, for errors."""
    shown = [f"{value} {name}" for value, name in zip(ids, names, strict=True)]
    return ", ".join(shown[:8]) + (", ..." if len(shown) > 8 else "")
