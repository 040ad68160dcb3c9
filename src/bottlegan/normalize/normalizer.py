"""The normalizer: a frozen network and one style code, which together bring one lab's images to the reference stain."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeGuard, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bottlegan.colormap.table import ColorMap
from bottlegan.core.errors import InputError
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
    """Brings images of one lab to the reference stain, and back; with frozen statistics, as a pure map of colors.

    Images are arrays (H, W, 3) of uint8 or of floats in [0, 1], PIL images, or tensors (3, H, W) or (N, 3, H, W) of
    floats in [0, 1] on any device. What comes back is of the same kind. No gradient passes. Arrays of uint8 take the
    kernel, with the same bits on every machine, and are remembered in a table of up to 64 MB, one for each direction.
    Floats take the network on their device. Pen is left as it is, unless `everything` is to be mapped.
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
        """Combine a model and a code; `fit`, `from_model` and `load` are how one comes by them.

        Args:
            model: Maps the colors.
            code: (K,) the style.
            name: Of the style.
            diagnosis: How far to trust it, where that is known.
            forced: Whether to map images even if the diagnosis says not to.
            everything: Whether to map pen as well.
            remembers: Whether to keep the tables of colors from one image to the next.
        """
        # What a model knows of others is no matter of a normalizer.
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
        """Fit the style code of a lab to a few of its images, unlabeled; the same seed gives the same code.

        Args:
            images: An array (H, W, 3) of uint8 or of floats in [0, 1], a PIL image, an image file, a folder, a slide,
                or several of these. All of ONE lab.
            model: A BottleGAN, or its file; by default the one shipped in the package.
            name: Of the style.
            seed: Of the choice of tiles of a slide.
            progress: Where to report progress, and the diagnosis.
            force: Map images even if the diagnosis is `refused`; else they are then given back as they are.
            everything: Map pen as well; else it is left as it is.
        """
        weights = open_model(PRIOR if model is None else model)
        found = onboard(read_images(images, seed), weights)
        verdict, reason = found.diagnosis.verdict, found.diagnosis.reason
        (progress or Silent()).event("diagnosis", verdict=verdict.value, reason=reason)
        return cls(weights, found.code, name, found.diagnosis, forced=force, everything=everything)

    @classmethod
    def from_model(
        cls, model: "ModelWeights | StyleModel | str | Path", style: str, *, everything: bool = False
    ) -> Self:
        """Return the normalizer of a style that the model knows."""
        weights = open_model(model)
        return cls(weights, weights.code(style), style, everything=everything)

    @classmethod
    def all_of(cls, model: "ModelWeights | StyleModel | str | Path") -> list[Self]:
        """Return the normalizers of all styles that a model knows; they share its network, and keep no tables."""
        weights = open_model(model)
        return [cls(weights, weights.code(name), name, remembers=False) for name in weights.document.styles]

    def __call__(self, image: AnyImage) -> AnyImage:
        """Return an image of the lab, or a batch of them, in the reference stain; unchanged if the style is refused."""
        return self._map(image, "normalize")

    def restain(self, image: AnyImage) -> AnyImage:
        """Return a reference-stained image, or a batch, in the style of the lab; unchanged if the style is refused."""
        return self._map(image, "restain")

    @overload
    def uncertainty(self, image: Pixels) -> NDArray[np.float32]: ...

    @overload
    def uncertainty(self, image: "Tensor") -> "Tensor": ...

    def uncertainty(self, image: "Pixels | Tensor") -> "NDArray[np.float32] | Tensor":
        """Return how little to trust each pixel's normalized color, (H, W) float32, or (N, H, W) of a batch.

        It is an optical density, in which strong stain is about 1 to 3: the standard deviation of the color if the code
        is as far off as fitted codes are, plus the distance of the color from the plane of the stains that it goes to,
        which no mix of the two leaves: ink, or another stain. A model that knows nothing of its reference set has no
        plane, and only the first part. A refused style is treated as if it were forced.
        """
        from bottlegan.normalize.doubt import doubt_batch, doubt_levels  # noqa: PLC0415 - few ask for it

        if is_tensor(image):
            return doubt_batch(image, self.model, self.code)
        return doubt_levels(check_levels(image), self.model, self.code)

    def like(self, other: "Normalizer | Given | Iterable[Given]") -> "Normalizer":
        """Return a normalizer that brings the lab's images to the style of another lab instead of the reference stain.

        Args:
            other: A normalizer of that lab, fitted with the same model, or images of it. It must not be refused.
        """
        if not isinstance(other, Normalizer):
            other = Normalizer.fit(other, model=self.model, name="target")
        if other.refused and other.diagnosis is not None:
            raise InputError(f"the style to go to is refused: {other.diagnosis.reason}")
        code, theirs = relate_codes(self.model, self.code, other.code), decode_maps(self.model, other.code[None])
        stains, maps = self.model.arrays["reference.stains"], self.model.arrays["reference.maps"]
        ours = read_reference(stains, maps)
        # For the images that come out, the other style is the reference stain.
        reached = StyleMaps(theirs.normalize.then(ours.normalize), ours.restain.then(theirs.restain))
        model = self.model.with_reference(stains @ theirs.restain.matrix[0], reached)
        return type(self)(model, code, self.name, self.diagnosis, forced=self.forced, everything=self.everything)

    @property
    def refused(self) -> bool:
        """Whether images are given back as they are, because the diagnosis says so and nobody forced it."""
        return self.diagnosis is not None and self.diagnosis.verdict == Verdict.REFUSED and not self.forced

    @property
    def maps_colors(self) -> bool:
        """Whether a pixel depends on nothing but its own color."""
        return maps_colors(self.model.document.model.generator)

    def color_map(self, direction: Direction = "normalize") -> ColorMap:
        """Return the map of colors of one direction, which remembers those seen so far."""
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
        """Write one direction as a coarse table for other software, whose comments say how far off it is.

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
        # A file of one style need not hold what fits others.
        model = self.model.without_encoder()
        write_weights(replace(model, document=replace(model.document, record=record)), Path(path))

    @classmethod
    def load(cls, path: str | Path, style: str | None = None, *, everything: bool = False) -> Self:
        """Read a normalizer, or that of the given style from a model file that knows several."""
        model = read_weights(Path(path))
        names, record = model.document.styles, model.document.record
        if style is None and len(names) != 1:
            known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            remedy = (
                f"choose one with style=NAME: {known}" if names else "make one with Normalizer.fit(images, model=...)"
            )
            raise InputError(f"{path}: knows {len(names)} styles, a normalizer is for one; {remedy}")
        name = names[0] if style is None else style
        code, diagnosis, forced = model.code(name), None, False
        if record.get("style") == name:
            diagnosis, forced = read_diagnosis(record, Path(path)), bool(record.get("forced"))
        return cls(model, code, name, diagnosis, forced=forced, everything=everything)

    def __repr__(self) -> str:
        """Return the name of the style, and what is thought of it."""
        known = "no diagnosis" if self.diagnosis is None else f"{self.diagnosis.verdict}: {self.diagnosis.reason}"
        return f"Normalizer({self.name!r}, {known}{', forced' if self.forced else ''})"

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
        """Return the same map for floats on a device, by the network of torch."""
        if self._tensor_map is None:
            from bottlegan.normalize.tensors import TensorMap  # noqa: PLC0415 - it imports torch

            self._tensor_map = TensorMap(self.model, self.code, everything=self.everything)
        return self._tensor_map


def open_model(model: "ModelWeights | StyleModel | str | Path") -> ModelWeights:
    """Return the weights of a model, read from its file if need be."""
    if isinstance(model, ModelWeights):
        return model
    if isinstance(model, str | Path):
        return read_weights(Path(model))
    from bottlegan.models.files import to_weights  # noqa: PLC0415 - torch is there already

    return to_weights(model)


def is_tensor(image: object) -> "TypeGuard[Tensor]":
    """Return whether this is a tensor of torch, which only who has imported it can have."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(image, torch.Tensor)
