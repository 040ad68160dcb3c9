"""Choosing the map for images and slides: fitted to them, or that of a style that a model knows.

Refused inputs are not written, and pen marks stay unchanged. Options can override both.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bottlegan.colormap.table import Convert
from bottlegan.core.errors import InputError
from bottlegan.core.progress import Json
from bottlegan.models.freeze import Direction
from bottlegan.models.weights import ModelWeights, read_weights
from bottlegan.normalize.given import Given
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.slides.reader import Slide


class ChosenMap(NamedTuple):
    """A map of colors, and the note about it for the files that it makes."""

    convert: Convert
    note: Mapping[str, Json]


Source = Path | Slide
MakeMap = Callable[[Source], ChosenMap]
"""Finds the map of an image, of a folder of images, or of an open slide."""


class RefusedError(InputError):
    """The input is not H&E, or shows no tissue."""


@dataclass(frozen=True)
class MapChoice:
    """The choice of a map: everything that another process needs to make it."""

    model: Path
    style: str | None = None
    """Style of the input, if the model knows it; otherwise it is fitted. For restaining, the target style."""
    to: str | None = None
    """Style to continue to from the reference stain."""
    direction: Direction = "normalize"
    seed: int = 0
    force: bool = False
    """Map refused inputs, too."""
    everything: bool = False
    """Map pen marks, too."""
    like: Path | None = None
    """Images of the lab whose style is the target instead of the reference stain."""

    def prepare(self) -> MakeMap:
        """Return the function that finds the map of a source. Models are loaded at once and shared by all sources."""
        model = read_weights(self.model)
        target = None if self.like is None else fit_target(self.like, model, self.seed)
        wanted = None if self.to is None else self._load(self.to)

        def finish(normalizer: Normalizer, style: str, judgment: Mapping[str, Json]) -> ChosenMap:
            note: dict[str, Json] = {**self._name(style), **judgment}
            if self.direction == "restain":
                return ChosenMap(normalizer.restain, note)
            return ChosenMap(aim(normalizer, target, wanted), note if wanted is None else {**note, "then": self.to})

        if self.style is not None:
            chosen = finish(self._load(self.style), self.style, {})
            return lambda _: chosen

        def fit(source: Source) -> ChosenMap:
            images: Given = source
            fitted = Normalizer.fit(images, model=model, seed=self.seed, force=self.force, everything=self.everything)
            return finish(fitted, "fitted to it", self._judge(fitted, source))

        return fit

    def describe(self) -> dict[str, Json]:
        """Return everything that determines the map, without paths; refuse a style that the model does not know."""
        for style in (self.style, self.to):
            if style is not None:
                self._load(style)
        like = None
        if self.like is not None:
            code = fit_target(self.like, read_weights(self.model), self.seed).code
            like = f"a style with the SHA-256 {hashlib.sha256(code.tobytes()).hexdigest()[:16]}"
        digest = hashlib.sha256(self.model.read_bytes()).hexdigest()
        values = {key: getattr(self, key) for key in ("direction", "style", "to", "seed", "force", "everything")}
        return {**values, "like": like, "model": f"SHA-256 {digest[:16]}"}

    def _load(self, style: str) -> Normalizer:
        """Return the normalizer of a style that the model knows. Refuse a style that was refused when it was fitted."""
        normalizer = Normalizer.load(self.model, style, everything=self.everything)
        if normalizer.refused and normalizer.diagnosis is not None:
            raise RefusedError(
                f"{self.model}: the style {style} is refused: {normalizer.diagnosis.reason}; fit it again, or use force"
            )
        return normalizer

    def _judge(self, fitted: Normalizer, source: Source) -> dict[str, Json]:
        """Return the note about a fit, or raise an error if it is refused."""
        diagnosis = fitted.diagnosis
        if diagnosis is None:
            return {}
        if fitted.refused:
            path = source if isinstance(source, Path) else source.path
            raise RefusedError(
                f"{path}: {diagnosis.verdict}: {diagnosis.reason}; nothing was written; add --force to write it anyway"
            )
        return {"verdict": diagnosis.verdict.value, "reason": diagnosis.reason, "forced": self.force, "seed": self.seed}

    def _name(self, style: str) -> dict[str, Json]:
        digest = hashlib.sha256(self.model.read_bytes()).hexdigest()
        toward: dict[str, Json] = {} if self.like is None else {"like": "images of another lab"}
        named: dict[str, Json] = {"style": style, "model": self.model.name, "model sha256": digest}
        return {"direction": self.direction, **named, "pen": "mapped" if self.everything else "left", **toward}


def aim(normalizer: Normalizer, like: Normalizer | None, to: Normalizer | None) -> Convert:
    """Return the map from a lab's stain to the reference stain, or else to the stain `like` or to the style `to`."""
    content = normalizer if like is None else normalizer.like(like)
    if to is None:
        return content
    return lambda levels: to.restain(content(levels))


def fit_target(like: Path, model: ModelWeights, seed: int) -> Normalizer:
    """Return the normalizer of the target images; refuse images that are not H&E."""
    target = Normalizer.fit(like, model=model, seed=seed, name="target")
    if target.refused and target.diagnosis is not None:
        raise InputError(f"{like}: cannot be the target style: {target.diagnosis.reason}")
    return target


def need_color_map(choice: MapChoice) -> None:
    """Refuse a model whose map depends on more than a pixel's color: tiles of a slide would not match."""
    form = read_weights(choice.model).document.model.generator
    if form.kind != "pixel" or form.statistics != "frozen" or not form.skip:
        raise InputError(
            f"{choice.model}: maps a pixel by its surroundings, so the tiles of a slide would not match; "
            "use a model of pixel generators with frozen statistics"
        )
