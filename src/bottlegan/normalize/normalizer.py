"""The normalizer: a frozen network and a style code, which together bring a lab's images to the reference stain."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeGuard, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bottlegan.colormap.table import ColorMap
from bottlegan.core.errors import InputError, list_names
from bottlegan.core.progress import Progress, Silent
from bottlegan.imaging.files import Pixels
from bottlegan.models.code_maps import decode_maps, read_reference, relate_codes
from bottlegan.models.document import PRIOR
from bottlegan.models.freeze import Direction, make_map, maps_colors
from bottlegan.models.weights import ModelWeights, read_weights, write_weights
from bottlegan.normalize.given import Given, check_levels, read_images
from bottlegan.normalize.record import forget_diagnosis, read_diagnosis, write_diagnosis
from bottlegan.onboarding.fit import onboard
from bottlegan.onboarding.verdict import StyleDiagnosis, Verdict
from bottlegan.stain.affine import StyleMaps

if TYPE_CHECKING:
    from torch import Tensor

    from bottlegan.models.paradigms import StyleModel
    from bottlegan.normalize.tensors import TensorMap

Floats = NDArray[np.float32]
AnyImage = TypeVar("AnyImage", Pixels, NDArray[np.floating], Image.Image, "Tensor")
DIRECTIONS: tuple[Direction, ...] = ("normalize", "restain")


class Normalizer:
    """Brings images of one lab to the reference stain, and back. With frozen statistics it is a pure map of colors.

    Images are arrays (H, W, 3) of uint8 or of floats in [0, 1], PIL images, or tensors (3, H, W) or (N, 3, H, W) of
    floats in [0, 1] on any device. The result has the same kind. Gradients do not pass. The kernel maps arrays of
    uint8, identically to the bit on every machine, and keeps their colors in a table of up to 64 MB per direction. The
    network maps floats on their device. Pen marks stay unchanged unless `everything` is true.
    """

    def __init__(
        self,
        model: ModelWeights,
        code: Floats,
        name: str = "lab",
        diagnosis: StyleDiagnosis | None = None,
        *,
        forced: bool = False,
        everything: bool = False,
        remembers: bool = True,
    ) -> None:
        """Combine a model and a code. Use `fit`, `from_model` or `load` to get a normalizer.

        Args:
            model: Maps the colors.
            code: (K,) the style code.
            name: Name of the style.
            diagnosis: How far to trust the style, if known.
            forced: Whether to map images even if the diagnosis refuses them.
            everything: Whether to map pen marks, too.
            remembers: Whether to keep the tables of colors between images.
        """
        # A normalizer needs none of the model's other styles.
        self.model, self.name = model.with_styles({name: np.array(code, np.float32)}), name
        self.code = self.model.code(name)
        self.diagnosis, self.forced, self.everything, self.remembers = diagnosis, forced, everything, remembers
        self._maps: dict[Direction, ColorMap] = {}
        self._tensor_map: TensorMap | None = None

    @classmethod
    def fit(
        cls,
        images: Given | Iterable[Given],
        *,
        model: "ModelWeights | StyleModel | str | Path | None" = None,
        name: str = "lab",
        seed: int = 0,
        progress: Progress | None = None,
        force: bool = False,
        everything: bool = False,
    ) -> Self:
        """Fit the style code of a lab to a few of its images, without labels. The same seed gives the same code.

        Args:
            images: An array (H, W, 3) of uint8 or of floats in [0, 1], a PIL image, an image file, a folder, a slide,
                or several of these. All of ONE lab.
            model: A BottleGAN, or its file; by default the one shipped in the package.
            name: Name of the style.
            seed: Seed for choosing the tiles of a slide.
            progress: Receives progress and the diagnosis.
            force: Map images even if the diagnosis is `refused`. Otherwise they are then returned unchanged.
            everything: Map pen marks, too. Otherwise they stay unchanged.
        """
        weights = open_model(PRIOR if model is None else model)
        fitted = onboard(read_images(images, seed), weights)
        verdict, reason = fitted.diagnosis.verdict, fitted.diagnosis.reason
        (progress or Silent()).event("diagnosis", verdict=verdict.value, reason=reason)
        return cls(weights, fitted.code, name, fitted.diagnosis, forced=force, everything=everything)

    @classmethod
    def from_model(
        cls, model: "ModelWeights | StyleModel | str | Path", style: str, *, everything: bool = False
    ) -> Self:
        """Return the normalizer of a style that the model knows."""
        weights = open_model(model)
        return cls(weights, weights.code(style), style, everything=everything)

    @classmethod
    def all_of(cls, model: "ModelWeights | StyleModel | str | Path") -> list[Self]:
        """Return the normalizers of all styles that a model knows. They share its network and keep no tables."""
        weights = open_model(model)
        return [cls(weights, weights.code(name), name, remembers=False) for name in weights.document.styles]

    def __call__(self, image: AnyImage) -> AnyImage:
        """Return an image of the lab, or a batch, in the reference stain; unchanged if the style is refused."""
        return self._map(image, "normalize")

    def restain(self, image: AnyImage) -> AnyImage:
        """Return a reference-stained image, or a batch, in the style of the lab; unchanged if the style is refused."""
        return self._map(image, "restain")

    @overload
    def uncertainty(self, image: Pixels) -> NDArray[np.float32]: ...

    @overload
    def uncertainty(self, image: "Tensor") -> "Tensor": ...

    def uncertainty(self, image: "Pixels | Tensor") -> "NDArray[np.float32] | Tensor":
        """Return the uncertainty of each pixel's normalized color, (H, W) float32, or (N, H, W) for a batch.

        It is an optical density, where strong stain has about 1 to 3, with two parts. The first is the standard
        deviation of the color if the code has the usual error of fitted codes. The second is the distance of the
        mapped color from the plane of the target stains. Mixtures of the two stains lie on that plane; ink and other
        stains do not. A model without data on its reference set has only the first part. A refused style is treated
        as if it were forced.
        """
        from bottlegan.normalize.doubt import doubt_batch, doubt_levels  # noqa: PLC0415 - few ask for it

        if is_tensor(image):
            return doubt_batch(image, self.model, self.code)
        return doubt_levels(check_levels(image), self.model, self.code)

    def like(self, other: "Normalizer | Given | Iterable[Given]") -> "Normalizer":
        """Return a normalizer that brings the lab's images to another lab's style instead of the reference stain.

        Args:
            other: A normalizer of the other lab, fitted with the same model, or its images. It must not be refused.
        """
        if not isinstance(other, Normalizer):
            other = Normalizer.fit(other, model=self.model, name="target")
        if other.refused and other.diagnosis is not None:
            raise InputError(f"the target style is refused: {other.diagnosis.reason}")
        code, theirs = relate_codes(self.model, self.code, other.code), decode_maps(self.model, other.code[None])
        stains, maps = self.model.arrays["reference.stains"], self.model.arrays["reference.maps"]
        ours = read_reference(stains, maps)
        # The other style is now the reference stain of the output.
        reached = StyleMaps(theirs.normalize.then(ours.normalize), ours.restain.then(theirs.restain))
        model = self.model.with_reference(stains @ theirs.restain.matrix[0], reached)
        return type(self)(model, code, self.name, self.diagnosis, forced=self.forced, everything=self.everything)

    @property
    def refused(self) -> bool:
        """Whether images are returned unchanged, because the diagnosis refuses them and nobody forced it."""
        return self.diagnosis is not None and self.diagnosis.verdict == Verdict.REFUSED and not self.forced

    @property
    def maps_colors(self) -> bool:
        """Whether the result of a pixel depends only on its own color."""
        return maps_colors(self.model.document.model.generator)

    def color_map(self, direction: Direction = "normalize") -> ColorMap:
        """Return the map of colors of one direction, which keeps the colors seen so far."""
        if direction not in DIRECTIONS:
            raise InputError(f"there is no direction called {direction}; use one of {', '.join(DIRECTIONS)}")
        if self.refused and self.diagnosis is not None:
            why = self.diagnosis.reason
            raise InputError(f"the style {self.name} is refused ({why}), so it has no color map; fit it with force")
        if direction not in self._maps:
            self._maps[direction] = make_map(
                self.model, self.code, direction, everything=self.everything, remembers=self.remembers
            )
        return self._maps[direction]

    def to_cube(self, path: str | Path, size: int = 33, direction: Direction = "normalize") -> None:
        """Write one direction as a coarse table for other software. Its comments state its error.

        Args:
            path: A file that ends in `.cube`.
            size: Colors along each side: 17, 33 or 65.
            direction: To the reference stain, or from it to the style.
        """
        from bottlegan.colormap.cube import write_cube  # noqa: PLC0415 - few ask for it
        from bottlegan.normalize.cube import make_cube  # noqa: PLC0415 - few ask for it

        write_cube(Path(path), make_cube(self, size, direction)[0])

    def save(self, path: str | Path) -> None:
        """Write the network, the code and the diagnosis to one `.safetensors` file: a model with one style."""
        record = forget_diagnosis(self.model.document.record)
        if self.diagnosis is not None:
            record |= write_diagnosis(self.diagnosis) | {"style": self.name, "forced": int(self.forced)}
        # A file with one style does not need the encoder, which fits others.
        model = self.model.without_encoders()
        write_weights(replace(model, document=replace(model.document, record=record)), Path(path))

    @classmethod
    def load(cls, path: str | Path, style: str | None = None, *, everything: bool = False) -> Self:
        """Read a normalizer. From a model file with several styles, read that of `style`."""
        model = read_weights(Path(path))
        names, record = model.document.styles, model.document.record
        if style is None and len(names) != 1:
            remedy = "make one with Normalizer.fit(images, model=...)"
            if names:
                remedy = f"choose one with style=NAME: {list_names(names)}"
            raise InputError(f"{path}: has {len(names)} styles, but a normalizer is for one; {remedy}")
        name = names[0] if style is None else style
        code, diagnosis, forced = model.code(name), None, False
        if record.get("style") == name:
            diagnosis, forced = read_diagnosis(record, Path(path)), bool(record.get("forced"))
        return cls(model, code, name, diagnosis, forced=forced, everything=everything)

    def __repr__(self) -> str:
        """Return the name of the style and its diagnosis."""
        diagnosis = "no diagnosis" if self.diagnosis is None else f"{self.diagnosis.verdict}: {self.diagnosis.reason}"
        return f"Normalizer({self.name!r}, {diagnosis}{', forced' if self.forced else ''})"

    def _map(self, image: Any, direction: Direction) -> Any:
        if is_tensor(image):
            return self.on_tensors()(image, direction, changed=not self.refused)
        if isinstance(image, np.ndarray) and image.dtype.kind == "f":
            return self.on_tensors().map_floats(image, direction, changed=not self.refused)
        mapped = self._map_levels(check_levels(image), direction)
        return Image.fromarray(mapped) if isinstance(image, Image.Image) else mapped

    def _map_levels(self, levels: Pixels, direction: Direction) -> Pixels:
        if self.refused:
            return levels.copy()
        if not self.maps_colors:
            return self.on_tensors().map_levels(levels, direction)
        return self.color_map(direction)(levels)

    def on_tensors(self) -> "TensorMap":
        """Return the same map for floats on any device, computed by the torch network."""
        if self._tensor_map is None:
            from bottlegan.normalize.tensors import TensorMap  # noqa: PLC0415 - it imports torch

            self._tensor_map = TensorMap(self.model, self.code, everything=self.everything)
        return self._tensor_map


def open_model(model: "ModelWeights | StyleModel | str | Path") -> ModelWeights:
    """Return the weights of a model, read from its file if necessary."""
    if isinstance(model, ModelWeights):
        return model
    if isinstance(model, str | Path):
        return read_weights(Path(model))
    from bottlegan.models.files import to_weights  # noqa: PLC0415 - torch is there already

    return to_weights(model)


def is_tensor(image: object) -> "TypeGuard[Tensor]":
    """Return whether this is a torch tensor. Without torch imported, nothing is."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(image, torch.Tensor)
