"""The normalizer: a frozen network and one style code, which together bring one lab's images to the reference stain."""

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Literal, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bottlegan.colormap.cube import write_cube
from bottlegan.colormap.table import ColorTable, map_colors
from bottlegan.data.lab import read_lab
from bottlegan.errors import InputError, ModelFileError
from bottlegan.imaging.files import Levels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.code_maps import decode_maps, relate_codes
from bottlegan.models.files import PRIOR, Record, read_document, save_model
from bottlegan.models.paradigms import BottleGAN
from bottlegan.models.style_codes import StyleCodes, check_name
from bottlegan.normalize.cube import make_cube
from bottlegan.onboarding.fit import onboard
from bottlegan.onboarding.verdict import StyleDiagnosis, Verdict
from bottlegan.progress import Progress, Silent
from bottlegan.seeding import torch_stream
from bottlegan.stain.density import to_density
from bottlegan.stain.macenko import plane_normal
from bottlegan.stain.style import Style

Direction = Literal["normalize", "restain"]
Model = BottleGAN | str | Path
Given = Levels | str | Path

CODE_NOISE = 0.15
"""How far each number of a fitted code is off, in units of its spread among all styles: the median error of fits to one
to four images of simulated labs, whose true codes are known."""
DRAWS = 8
"""Codes drawn around a style's own, to see how much that matters."""


@dataclass(frozen=True)
class Origin:
    """What is known of the network that a normalizer was made from, and is written to its file again."""

    record: Record = field(default_factory=dict)
    """How it was trained."""
    stain: Style | None = None
    """The reference stain."""

    @property
    def training(self) -> Record:
        """The record without what it says of the style that was fitted last."""
        return {key: value for key, value in self.record.items() if key not in RECORDED}


class FrozenNetwork:
    """A copy of a model's generators that nothing trains, on every device that it has been used on."""

    def __init__(self, model: BottleGAN) -> None:
        """Copy the model, without its styles."""
        frozen = copy.deepcopy(model).cpu().eval().requires_grad_(False)
        frozen.codes = StyleCodes([], model.codes.size, torch.Generator())
        self._copies = {torch.device("cpu"): frozen}

    def on(self, device: torch.device | str) -> BottleGAN:
        """Return the network on a device."""
        device = torch.device(device)
        if device not in self._copies:
            self._copies[device] = copy.deepcopy(self._copies[torch.device("cpu")]).to(device)
        return self._copies[device]

    def maps_colors(self) -> bool:
        """Return whether a pixel depends on nothing but its own color, so that each color need be mapped only once."""
        form = self.on("cpu").config.generator
        return form.kind == "pixel" and form.statistics == "frozen"


class Normalizer:
    """Brings images of one lab to the reference stain, and back; with frozen statistics, as a pure map of colors.

    Images are RGB levels (H, W, 3), uint8, or batches (N, 3, H, W) of floats in [0, 1] on any device. No gradient
    passes. Levels are looked up in a table, one for each direction, in which the network maps a color when it is first
    seen; those of the images that it is fitted to are mapped then. A table takes up to 64 MB, and none before it is
    needed.
    """

    def __init__(
        self,
        network: FrozenNetwork,
        code: Tensor,
        name: str = "lab",
        diagnosis: StyleDiagnosis | None = None,
        *,
        forced: bool = False,
        origin: Origin | None = None,
        keeps_colors: bool = True,
        target: Tensor | None = None,
    ) -> None:
        """Combine a network and a code; `fit`, `from_model` and `load` are how one comes by them.

        Args:
            network: Maps the colors.
            code: (K,) the style.
            name: Of the style.
            diagnosis: How far to trust it, where that is known.
            forced: Whether to map images even if the diagnosis says not to.
            origin: Where the network comes from.
            keeps_colors: Whether to keep the tables of colors from one image to the next.
            target: (2, 3) densities of the stains that it goes to, if not to the reference stain.
        """
        check_name(name)
        self.network, self.code, self.name = network, code.detach().cpu().clone(), name
        self.diagnosis, self.forced, self.origin = diagnosis, forced, origin or Origin()
        self._keeps_colors, self._target = keeps_colors, target
        directions: tuple[Direction, ...] = ("normalize", "restain")
        self._tables = {each: ColorTable(partial(self._map_colors, each)) for each in directions}

    @classmethod
    def fit(
        cls,
        images: Given | Iterable[Given],
        *,
        model: Model | None = None,
        name: str = "lab",
        seed: int = 0,
        progress: Progress | None = None,
        force: bool = False,
    ) -> Self:
        """Fit the style code of a lab to a few of its images, unlabeled; the same seed gives the same code.

        Args:
            images: RGB levels (H, W, 3), uint8, an image file, a folder, a slide, or several of these. All of ONE lab.
            model: A BottleGAN, or its file; by default the one shipped in the package.
            name: Of the style.
            seed: Of the choice of tiles of a slide.
            progress: Where to report progress, and the diagnosis.
            force: Map images even if the diagnosis is `refused`; else they are then given back as they are.
        """
        network, origin = open_model(PRIOR if model is None else model)
        given = read_images(images, seed)
        found = onboard(given, network)
        verdict, reason = found.diagnosis.verdict, found.diagnosis.reason
        (progress or Silent()).event("diagnosis", verdict=verdict.value, reason=reason)
        fitted = cls(FrozenNetwork(network), found.code, name, found.diagnosis, forced=force, origin=origin)
        fitted.prepare(given)
        return fitted

    def prepare(self, images: Iterable[Levels]) -> None:
        """Map the colors of some images in advance, so that normalizing these and their like is a mere lookup."""
        if self._keeps_colors and not self.refused and self.network.maps_colors():
            for image in images:
                self._tables["normalize"].learn(image)

    @classmethod
    def from_model(cls, model: Model, style: str) -> Self:
        """Return the normalizer of a style that the model knows."""
        network, origin = open_model(model)
        return cls(FrozenNetwork(network), network.codes[style], style, origin=origin)

    @classmethod
    def all_of(cls, model: Model) -> list[Self]:
        """Return the normalizers of all styles that a model knows; they share its network, and keep no tables."""
        network, origin = open_model(model)
        frozen, names = FrozenNetwork(network), network.codes.names
        return [cls(frozen, network.codes[name], name, origin=origin, keeps_colors=False) for name in names]

    @overload
    def __call__(self, image: Levels) -> Levels: ...

    @overload
    def __call__(self, image: Tensor) -> Tensor: ...

    def __call__(self, image: Levels | Tensor) -> Levels | Tensor:
        """Return an image of the lab, or a batch of them, in the reference stain; unchanged if the style is refused."""
        return self._map(image, "normalize")

    @overload
    def restain(self, image: Levels) -> Levels: ...

    @overload
    def restain(self, image: Tensor) -> Tensor: ...

    def restain(self, image: Levels | Tensor) -> Levels | Tensor:
        """Return a reference-stained image, or a batch, in the style of the lab; unchanged if the style is refused."""
        return self._map(image, "restain")

    @overload
    def uncertainty(self, image: Levels) -> NDArray[np.float32]: ...

    @overload
    def uncertainty(self, image: Tensor) -> Tensor: ...

    @torch.no_grad()
    def uncertainty(self, image: Levels | Tensor) -> NDArray[np.float32] | Tensor:
        """Return how little to trust each pixel's normalized color, (H, W) float32, or (N, H, W) of a batch.

        It is an optical density, in which strong stain is about 1 to 3: the standard deviation of the color if the code
        is as far off as fitted codes are (`CODE_NOISE`), plus the distance of the color from the plane of the
        reference stains, which no mix of the two leaves: ink, or another stain. A model that knows nothing of its
        reference set has no plane, and only the first part. A refused style is treated as if it were forced.
        """
        check_image(image)
        if isinstance(image, Tensor):
            return self._doubt(image)
        if not self.network.maps_colors():
            return self._doubt(to_batch(image))[0].numpy()
        return map_colors(image, lambda colors: self._doubt(to_batch(colors[None]))[0, 0].numpy())

    @torch.no_grad()
    def like(self, other: "Normalizer | Given | Iterable[Given]") -> "Normalizer":
        """Return a normalizer that brings the lab's images to the style of another lab instead of the reference stain.

        Args:
            other: A normalizer of that lab, fitted with the same model, or images of it. It must not be refused.
        """
        network = self.network.on("cpu")
        if not isinstance(other, Normalizer):
            other = Normalizer.fit(other, model=network, name="target")
        if other.refused and other.diagnosis is not None:
            raise InputError(f"the style to go to is refused: {other.diagnosis.reason}")
        code = relate_codes(network, self.code, other.code)
        stains = network.reference.stains @ decode_maps(network, other.code[None]).restain.matrix[0]
        return type(self)(
            self.network, code, self.name, self.diagnosis, forced=self.forced, origin=self.origin, target=stains
        )

    @property
    def refused(self) -> bool:
        """Whether images are given back as they are, because the diagnosis says so and nobody forced it."""
        return self.diagnosis is not None and self.diagnosis.verdict == Verdict.REFUSED and not self.forced

    def table(self, direction: Direction = "normalize") -> ColorTable:
        """Return the exact table of one direction, which holds the colors seen so far and learns others when asked."""
        if direction not in self._tables:
            raise InputError(f"there is no direction called {direction}; use one of {', '.join(self._tables)}")
        if self.refused and self.diagnosis is not None:
            why = self.diagnosis.reason
            raise InputError(f"the style {self.name} is refused ({why}), so it has no color map; fit it with force")
        if not self.network.maps_colors():
            raise InputError("this network looks at more than one pixel, so no table holds it; use frozen statistics")
        return self._tables[direction]

    def to_cube(self, path: str | Path, size: int = 33, direction: Direction = "normalize") -> None:
        """Write one direction as a coarse table for other software, whose comments say how far off it is.

        Args:
            path: A file that ends in `.cube`.
            size: Colors along each side: 17, 33 or 65.
            direction: To the reference stain, or from it to the style.
        """
        write_cube(Path(path), make_cube(self, size, direction)[0])

    def save(self, path: str | Path) -> None:
        """Write the network, the code and the diagnosis to one `.safetensors` file: a model with one style."""
        model = copy.deepcopy(self.network.on("cpu"))
        model.codes.add(self.name, self.code)
        model.encoder = None  # a file of one style need not hold what fits others
        record = dict(self.origin.training)
        if self.diagnosis is not None:
            record |= write_diagnosis(self.diagnosis) | {"style": self.name, "forced": int(self.forced)}
        save_model(model, Path(path), record, self.origin.stain)

    @classmethod
    def load(cls, path: str | Path, style: str | None = None) -> Self:
        """Read a normalizer, or that of the given style from a model file that knows several."""
        model, origin = open_model(path)
        names = model.codes.names
        if style is None and len(names) != 1:
            known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            remedy = (
                f"choose one with style=NAME: {known}" if names else "make one with Normalizer.fit(images, model=...)"
            )
            raise InputError(f"{path}: knows {len(names)} styles, a normalizer is for one; {remedy}")
        name = names[0] if style is None else style
        code, diagnosis, forced = model.codes[name], None, False
        if origin.record.get("style") == name:
            diagnosis, forced = read_diagnosis(origin.record, Path(path)), bool(origin.record.get("forced"))
        return cls(FrozenNetwork(model), code, name, diagnosis, forced=forced, origin=origin)

    def __repr__(self) -> str:
        """Return the name of the style, and what is thought of it."""
        known = "no diagnosis" if self.diagnosis is None else f"{self.diagnosis.verdict}: {self.diagnosis.reason}"
        return f"Normalizer({self.name!r}, {known}{', forced' if self.forced else ''})"

    @torch.no_grad()
    def _map(self, image: Levels | Tensor, direction: Direction) -> Levels | Tensor:
        check_image(image)
        if self.refused:
            return image.clone() if isinstance(image, Tensor) else image.copy()
        if isinstance(image, Tensor):
            return self._run(image, direction)
        if not self.network.maps_colors():
            return from_batch(self._run(to_batch(image), direction))[0]
        if self._keeps_colors:
            return self._tables[direction](image)
        return map_colors(image, partial(self._map_colors, direction))

    @torch.no_grad()
    def _map_colors(self, direction: Direction, colors: Levels) -> Levels:
        """Return colors (N, 3), mapped by the network."""
        return from_batch(self._run(to_batch(colors[None]), direction))[0][0]

    def _run(self, images: Tensor, direction: Direction, code: Tensor | None = None) -> Tensor:
        """Return images (N, 3, H, W), mapped by the network, on their device and in their precision."""
        network = self.network.on(images.device)
        chosen = (self.code if code is None else code).to(images.device)
        run = network.normalize if direction == "normalize" else network.restain
        with torch.autocast(images.device.type, enabled=False):  # half precision would show as bands of color
            return run(images.float(), chosen).to(images.dtype)

    def _doubt(self, images: Tensor) -> Tensor:
        """Return the uncertainty (N, H, W) of images (N, 3, H, W).

        One image at a time: how a library sums depends on the sizes that it is given, and a batch is its images.
        """
        noise = torch.randn(DRAWS, len(self.code), generator=torch_stream(0, "uncertainty"))
        codes = [self.code + CODE_NOISE * each for each in noise]
        stains = self.network.on("cpu").reference.stains if self._target is None else self._target
        normal = plane_normal(stains[None])[0, 0].to(images.device)
        doubts = []
        for image in images.float().split(1):
            drawn = torch.cat([to_density(self._run(image, "normalize", code)) for code in codes])
            across = (to_density(self._run(image, "normalize"))[0] * normal[:, None, None]).sum(0)
            doubts.append(drawn.var(0).sum(0).sqrt() + across.abs())
        return torch.stack(doubts) if doubts else images.new_zeros(len(images), *images.shape[2:])


FIGURES = tuple(each.name for each in fields(StyleDiagnosis) if each.name not in ("verdict", "reason"))
RECORDED = frozenset(("style", "forced", "verdict", "reason", *FIGURES))
"""What a normalizer's file says of its style, beside what the model's said of its training."""


def write_diagnosis(diagnosis: StyleDiagnosis) -> dict[str, str | int | float]:
    """Return a diagnosis as a model file's record can hold it: infinity, which JSON lacks, as a word."""
    figures = {name: getattr(diagnosis, name) for name in FIGURES}
    told = {name: value if math.isfinite(value) else str(value) for name, value in figures.items()}
    return {"verdict": diagnosis.verdict.value, "reason": diagnosis.reason, **told}


def read_diagnosis(record: Mapping[str, str | int | float], path: Path) -> StyleDiagnosis:
    """Return the diagnosis in the record of the model file `path`."""
    try:
        figures = {name: float(record[name]) for name in FIGURES}
        return StyleDiagnosis(Verdict(str(record["verdict"])), str(record["reason"]), **figures)
    except (KeyError, ValueError) as error:
        raise ModelFileError(f"{path}: its diagnosis cannot be read ({error}); fit the style again") from None


def open_model(model: Model) -> tuple[BottleGAN, Origin]:
    """Return a model, read from its file if need be, and what its file says of it."""
    if isinstance(model, BottleGAN):
        return model, Origin()
    said = read_document(Path(model))
    return BottleGAN.load(model), Origin(said.record, said.reference)


def read_images(images: object, seed: int) -> list[Levels]:
    """Return images given as arrays or as paths, of which no more are read than a fit looks at."""
    if isinstance(images, str | Path | Tensor) or (isinstance(images, np.ndarray) and images.ndim != 4):
        images = [images]
    if not isinstance(images, Iterable):
        raise InputError(f"images must be arrays or paths, got a {type(images).__name__}; give at least one")
    given = list(images)
    paths = [Path(each) for each in given if isinstance(each, str | Path)]
    arrays = [check_levels(each) for each in given if not isinstance(each, str | Path)]
    return arrays + (read_lab(paths, seed) if paths else [])


def check_image(image: object) -> None:
    """Refuse what is neither an image nor a batch of them that can be mapped."""
    if not isinstance(image, Tensor):
        check_levels(image)
        return
    if not image.is_floating_point():
        raise InputError(f"a tensor must hold floats in [0, 1], got {image.dtype}; use tensor.float() / 255")
    if image.ndim != 4 or image.shape[1] != 3:
        shape = tuple(image.shape)
        raise InputError(f"a tensor must be a batch (N, 3, height, width), got {shape}; add or permute dimensions")
    if image.numel() and not (image.amin() >= 0 and image.amax() <= 1):
        low, high = image.amin().item(), image.amax().item()
        raise InputError(f"a tensor must hold values in [0, 1], got {low:g} to {high:g}; scale it, or clamp it")


def check_levels(image: object) -> Levels:
    """Return RGB levels (H, W, 3), uint8, if that is what it is."""
    wanted = "an image must be a uint8 array (height, width, 3) or a float tensor (N, 3, height, width)"
    if not isinstance(image, np.ndarray):
        raise InputError(f"{wanted}, got a {type(image).__name__}; convert it, for example with np.asarray")
    if image.dtype != np.uint8:
        raise InputError(f"{wanted}, got an array of {image.dtype}; scale it to 0 to 255 and use .astype(np.uint8)")
    if image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise InputError(f"{wanted}, got shape {image.shape}; give RGB, channels last, without alpha, and not empty")
    return image
