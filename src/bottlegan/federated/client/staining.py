"""How a lab handles stain in phase 2.

A `Staining` says what happens to a lab's images in three places: once before training (`prepare`), anew in each batch
(`vary`), and before prediction (`present`).

| mode | prepare | vary | present |
| --- | --- | --- | --- |
| plain | as it is | as it is | as it is |
| normalize | the lab's OWN normalizer | as it is | the lab's own normalizer |
| restain | the lab's own normalizer | random styles of ALL labs | as it is |
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np

from bottlegan import __version__
from bottlegan.core.errors import InputError
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.imaging.files import Pixels
from bottlegan.models.weights import ModelWeights, read_weights
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.training.task import Vary


def keep(image: Pixels) -> Pixels:
    """Leave an image as it is."""
    return image


def keep_all(crops: Pixels, random: np.random.Generator) -> Pixels:
    """Leave crops as they are."""
    return crops


@dataclass(frozen=True)
class Staining:
    """How a lab's images are stained, in three places."""

    prepare: Callable[[Pixels], Pixels] = keep
    """Applied once to each image (H, W, 3), before training."""
    vary: Vary = keep_all
    """Applied to the crops (N, H, W, 3) of each batch."""
    present: Callable[[Pixels], Pixels] = keep
    """Applied to each image before prediction."""
    digest: str = ""
    """Digest of the map that `prepare` and `present` apply; empty if they change nothing."""


class Styles:
    """The global BottleGAN of phase 1, and maps to the styles of all labs."""

    def __init__(self, model: ModelWeights) -> None:
        """Use a model that holds all styles."""
        self.model = model

    @cached_property
    def restainers(self) -> list[Normalizer]:
        """One normalizer per lab, to restain images in its style. Each table may take 64 MB."""
        return [Normalizer.from_model(self.model, name) for name in self.model.document.styles]


_shared: WeakValueDictionary[str, Styles] = WeakValueDictionary()


def read_styles(path: Path) -> Styles:
    """Read the styles in a file. Labs in one process, as in a simulation, share them and their tables."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if (styles := _shared.get(digest)) is None:
        styles = _shared[digest] = Styles(read_weights(path))
    return styles


Stain = Callable[[Phase2Config, Styles | None, str], Staining]
"""Returns the staining of a lab, given its name and the styles of phase 1, if any."""


def stain_with(config: Phase2Config, styles: Styles | None, own: str) -> Staining:
    """Return the staining of the lab whose style is `own`, with the global BottleGAN, which holds all styles."""
    if config.mode == "plain":
        return Staining()
    if styles is None:
        raise InputError(f"mode {config.mode} needs the styles of phase 1; run that first, or use mode plain")
    normalizer = Normalizer.from_model(styles.model, own)
    vary = restain_randomly(styles.restainers, config.share) if config.share else keep_all
    return Staining(normalizer, vary, normalizer if config.mode == "normalize" else keep, digest_map(normalizer))


def digest_map(normalizer: Normalizer) -> str:
    """Return the SHA-256 of everything that determines a normalizer's output."""
    digest = hashlib.sha256(f"{__version__} {normalizer.model.document.model}".encode())
    for name, array in sorted(normalizer.model.arrays.items()):
        digest.update(f" {name} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def restain_randomly(styles: Sequence[Normalizer], share: float) -> Vary:
    """Return a map that restains a share of reference-stained crops, each in a random style."""

    def vary(crops: Pixels, random: np.random.Generator) -> Pixels:
        output = crops.copy()
        for row, crop in enumerate(crops):
            chance, style = random.random(), int(random.integers(len(styles)))
            if chance < share:
                output[row] = styles[style].restain(np.ascontiguousarray(crop))
        return output

    return vary
