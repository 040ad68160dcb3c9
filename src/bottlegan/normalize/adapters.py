"""The same transforms for pipelines of MONAI (dictionaries) and Albumentations (arrays).

MONAI: `NormalizeStaind`, `Restaind`, `RandRestaind`. Albumentations: `NormalizeStain`, `Restain`, `RandomRestain`.

Each is a subclass of its library's transform, so the library is imported, and the class made, on first use. Randomness
is the library's own: seed it there (`set_random_state`, `Compose(..., seed=...)`).
"""

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bottlegan.core.errors import MissingError
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.normalize.transforms import Styles, list_normalizers

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from bottlegan.imaging.files import Pixels

    NormalizeStaind: Any
    Restaind: Any
    RandRestaind: Any
    NormalizeStain: Any
    Restain: Any
    RandomRestain: Any

__all__ = ["NormalizeStain", "NormalizeStaind", "RandRestaind", "RandomRestain", "Restain", "Restaind"]

FOR_MONAI = ("NormalizeStaind", "Restaind", "RandRestaind")
FOR_ALBUMENTATIONS = ("NormalizeStain", "Restain", "RandomRestain")


def __getattr__(name: str) -> type:
    """Make a class on first use."""
    if name in FOR_MONAI:
        return _for_monai()[name]
    if name in FOR_ALBUMENTATIONS:
        return _for_albumentations()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def map_channels_first(convert: "Callable[[Any], Any]", image: Any) -> Tensor:
    """Return the mapped image (3, H, W), an array or a tensor: uint8 as levels, floats as intensities in [0, 1]."""
    values = image if isinstance(image, Tensor) else torch.from_numpy(np.array(image))
    if values.dtype != torch.uint8:
        return convert(values[None])[0]
    return torch.from_numpy(convert(values.permute(1, 2, 0).cpu().numpy())).permute(2, 0, 1)


@cache
def _for_monai() -> dict[str, type]:
    monai = _import("monai.transforms", "monai")
    convert_like = _import("monai.utils", "monai").convert_to_dst_type

    def apply(convert: "Callable[[Any], Any]", image: Any) -> Any:
        # MONAI's metadata of an image, such as its affine, must stay with it. While it is attached, however, every
        # operation on the image copies it.
        plain = image.as_tensor() if hasattr(image, "as_tensor") else image
        return convert_like(map_channels_first(convert, plain), image)[0]

    class NormalizeStaind(monai.MapTransform):  # type: ignore[misc, name-defined]
        """Brings images (3, H, W) of one lab, levels in uint8 or floats in [0, 1], to the reference stain."""

        def __init__(self, keys: Any, normalizer: Normalizer, allow_missing_keys: bool = False) -> None:
            """Take the keys of the images, and the lab's normalizer."""
            super().__init__(keys, allow_missing_keys)
            self.normalizer = normalizer

        def __call__(self, data: "Mapping[Hashable, Any]") -> "dict[Hashable, Any]":
            """Return the data with the images normalized."""
            mapped = {key: apply(self.normalizer, data[key]) for key in self.key_iterator(dict(data))}
            return {**data, **mapped}

    class Restaind(NormalizeStaind):
        """Brings reference-stained images (3, H, W) to the style of one lab."""

        def __call__(self, data: "Mapping[Hashable, Any]") -> "dict[Hashable, Any]":
            """Return the data with the images restained."""
            mapped = {key: apply(self.normalizer.restain, data[key]) for key in self.key_iterator(dict(data))}
            return {**data, **mapped}

    class RandRestaind(monai.RandomizableTransform, monai.MapTransform):  # type: ignore[misc, name-defined]
        """Brings reference-stained images (3, H, W) to a random style, new at each call and the same for all keys."""

        def __init__(self, keys: Any, styles: Styles, prob: float = 1.0, allow_missing_keys: bool = False) -> None:
            """Take the keys of the images, and the styles to draw from: a model, its file, or normalizers."""
            monai.MapTransform.__init__(self, keys, allow_missing_keys)
            monai.RandomizableTransform.__init__(self, prob)
            self.normalizers = list_normalizers(styles)
            self.row = 0

        def randomize(self, data: Any = None) -> None:
            """Draw whether to restain, and the style."""
            super().randomize(None)
            self.row = int(self.R.randint(len(self.normalizers)))

        def __call__(self, data: "Mapping[Hashable, Any]") -> "dict[Hashable, Any]":
            """Return the data with the images restained, or unchanged."""
            self.randomize()
            if not self._do_transform:
                return dict(data)
            restain = self.normalizers[self.row].restain
            return {**data, **{key: apply(restain, data[key]) for key in self.key_iterator(dict(data))}}

    return _publish(NormalizeStaind, Restaind, RandRestaind)


@cache
def _for_albumentations() -> dict[str, type]:
    base = _import("albumentations", "albumentations").ImageOnlyTransform

    class NormalizeStain(base):  # type: ignore[misc, valid-type]
        """Brings images (H, W, 3), uint8, of one lab to the reference stain."""

        def __init__(self, normalizer: Normalizer, p: float = 1.0) -> None:
            """Take the lab's normalizer, and the probability of using it."""
            super().__init__(p=p)
            self.normalizer = normalizer

        def apply(self, img: "Pixels", **_: Any) -> "Pixels":
            """Return the image in the reference stain."""
            return self.normalizer(img)

    class Restain(base):  # type: ignore[misc, valid-type]
        """Brings reference-stained images (H, W, 3), uint8, to the style of one lab."""

        def __init__(self, normalizer: Normalizer, p: float = 1.0) -> None:
            """Take the lab's normalizer, and the probability of using it."""
            super().__init__(p=p)
            self.normalizer = normalizer

        def apply(self, img: "Pixels", **_: Any) -> "Pixels":
            """Return the image in the lab's style."""
            return self.normalizer.restain(img)

    class RandomRestain(base):  # type: ignore[misc, valid-type]
        """Brings reference-stained images (H, W, 3), uint8, to a random style, new at each call."""

        def __init__(self, styles: Styles, p: float = 1.0) -> None:
            """Take the styles to draw from (a model, its file, or normalizers), and the probability of restaining."""
            super().__init__(p=p)
            self.normalizers = list_normalizers(styles)

        def get_params(self) -> dict[str, Any]:
            """Draw a style."""
            return {"row": self.py_random.randrange(len(self.normalizers))}

        def apply(self, img: "Pixels", row: int = 0, **_: Any) -> "Pixels":
            """Return the image in the style."""
            return self.normalizers[row].restain(img)

    return _publish(NormalizeStain, Restain, RandomRestain)


def _import(module: str, package: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # the package is installed, but something that it needs is not
        raise MissingError(f"{package} is not installed; run `pip install {package}` to use this transform") from None


def _publish(*classes: type) -> dict[str, type]:
    """Return the classes by name, as if this module had defined them: worker processes look them up here."""
    for transform in classes:
        transform.__qualname__ = transform.__name__
    return {transform.__name__: transform for transform in classes}
