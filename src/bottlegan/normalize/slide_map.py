"""The color map of a slide: fitted to its tissue, or that of a style which a model knows."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bottlegan.colormap.table import ColorTable, Convert
from bottlegan.errors import InputError
from bottlegan.imaging.files import Levels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.code_maps import relate_codes
from bottlegan.models.files import load_model
from bottlegan.models.paradigms import BottleGAN, StyleModel
from bottlegan.normalize.normalizer import Direction, open_model, read_images
from bottlegan.normalize.spare import describe_reference, describe_style, spare_ink
from bottlegan.onboarding.fit import onboard
from bottlegan.onboarding.verdict import Verdict
from bottlegan.progress import Json, Progress

MakeMap = Callable[[Path], "SlideMap"]
"""What finds the color map of a slide."""


class SlideMap:
    """A color map, the table that remembers it, and what to say of it in the files that it makes."""

    def __init__(self, colors: Convert, note: Mapping[str, Json]) -> None:
        """Begin with an empty table of what `colors` makes of colors (N, 3), each by itself."""
        self.colors, self.note = colors, dict(note)
        self.convert = ColorTable(colors)

    def then(self, following: "SlideMap") -> "SlideMap":
        """Return this map and another after it, as one."""

        def colors(levels: Levels) -> Levels:
            return following.colors(self.colors(levels))

        return SlideMap(colors, {**self.note, "then": following.note})


@dataclass(frozen=True)
class MapChoice:
    """Which map slides get: all that another process needs to know to make it."""

    model: Path
    style: str | None = None
    """Of the slides, if the model knows it; else it is fitted to each. To restain, the one to bring them to."""
    to: str | None = None
    """The style to go on to from the reference stain."""
    direction: Direction = "normalize"
    seed: int = 0
    force: bool = False
    """Map slides even if their style is refused."""
    everything: bool = False
    """Map pen as well."""
    like: Path | None = None
    """Images of the lab whose style to go to instead of the reference stain."""

    def prepare(self, progress: Progress | None = None) -> MakeMap:
        """Return what finds the map of a slide; what can be loaded is, at once, and shared by all slides."""
        target = None if self.like is None else find_target(self.model, self.like, self.seed)
        known = None if self.style is None else load_map(self, self.style, self.direction, target)
        wanted = None if self.to is None else load_map(self, self.to, "restain")

        def finish(content: SlideMap) -> SlideMap:
            return content if wanted is None else content.then(wanted)

        if known is None:
            return lambda slide: finish(fit_map(slide, self, target))
        shared = finish(known)
        return lambda _: shared


def find_target(model: Path, like: Path, seed: int) -> Tensor:
    """Return the code (K,) of the style of some images, to go to it; refuse what is not H&E."""
    network, _ = open_model(model)
    with one_thread():
        found = onboard(read_images(like, seed), network)
    if found.diagnosis.verdict == Verdict.REFUSED:
        raise InputError(f"{like}: cannot be the style to go to: {found.diagnosis.reason}")
    return found.code


def fit_map(source: Path, choice: MapChoice, target: Tensor | None = None) -> SlideMap:
    """Fit one style to tissue of a slide, and return the map to the reference stain, or to the style of `target`."""
    network, _ = open_model(choice.model)
    _check_map(network, choice.model)
    with one_thread():
        found = onboard(read_images(source, choice.seed), network)
    verdict, reason = found.diagnosis.verdict, found.diagnosis.reason
    if verdict == Verdict.REFUSED and not choice.force:
        raise InputError(f"{source}: {verdict}: {reason}; nothing was written, --force it to do so anyway")
    said: dict[str, Json] = {"verdict": verdict.value, "reason": reason, "forced": choice.force, "seed": choice.seed}
    colors = map_colors(network, found.code, "normalize", choice.everything, target)
    return SlideMap(colors, _name_map(choice, "normalize", "fitted to this slide") | said)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread a call.

    Many threads map at once, and would fight over the cores. What is fitted depends in its last bits on how many sum.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_map(choice: MapChoice, style: str, direction: Direction, target: Tensor | None = None) -> SlideMap:
    """Return the map from or to a style that a model of any paradigm knows; a BottleGAN's may go to a `target`."""
    network = load_model(choice.model)
    _check_map(network, choice.model)
    colors = map_colors(network, network.codes[style].detach(), direction, choice.everything, target)
    return SlideMap(colors, _name_map(choice, direction, style))


def map_colors(
    network: StyleModel, code: Tensor, direction: Direction, everything: bool, target: Tensor | None = None
) -> Convert:
    """Return what maps colors (N, 3) as a network does, but for ink, unless `everything` is to be mapped.

    With the code of a `target`, a BottleGAN goes to that style instead of the reference stain.
    """
    network.eval().requires_grad_(False)
    toward = code
    if target is not None and isinstance(network, BottleGAN):
        toward = relate_codes(network, code, target)

    def convert(colors: Levels) -> Levels:
        run = network.normalize if direction == "normalize" else network.restain
        # A thread's own setting, so it must be made in every one that maps.
        with torch.inference_mode():
            return from_batch(run(to_batch(colors[None]), toward))[0][0]

    if everything or not network.reference.known:
        return convert  # a model that knows nothing of its reference set cannot tell what ink is
    reference = network.reference
    if direction == "restain":
        return spare_ink(convert, describe_reference(reference))
    with torch.no_grad():
        return spare_ink(convert, describe_style(reference, lambda images: network.restain(images, code)))


def _check_map(network: StyleModel, model: Path) -> None:
    form = network.config.generator
    if form.kind != "pixel" or form.statistics != "frozen":
        raise InputError(
            f"{model}: maps a pixel by what is around it, so the tiles of a slide would not fit together; "
            "use a model of pixel generators with frozen statistics"
        )


def _name_map(choice: MapChoice, direction: Direction, style: str) -> dict[str, Json]:
    digest = hashlib.sha256(choice.model.read_bytes()).hexdigest()
    toward: dict[str, Json] = {} if choice.like is None else {"like": "images of another lab"}
    return {"direction": direction, "style": style, "model": choice.model.name, "model sha256": digest} | toward
