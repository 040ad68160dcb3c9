"""FedBN: layers that a lab keeps to itself, on its disk, so that a round asked for twice begins at the same place.

Its own are the normalization layers of the network, with their statistics. The server gets and averages them like all
others, but what it sends back is not used here.
"""

import json
import logging
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load, save
from torch import Tensor

from bottlegan.core.errors import DamagedError
from bottlegan.core.stamp import BLANK
from bottlegan.core.stamp import KEY as CHECKSUM
from bottlegan.core.state import find_older, forget_generations, read_metadata, read_state, write_generation

Layers = dict[str, Tensor]
ROUND = "round"
log = logging.getLogger(__name__)


class Trained(NamedTuple):
    """The layers before and after a round that the lab has trained in."""

    number: int
    before: Layers
    after: Layers


class OwnLayers:
    """The layers of the last two rounds that the lab has trained in.

    The server saves itself after each round, in two generations, so that no earlier round can be asked for again.
    """

    def __init__(self, path: Path) -> None:
        """Keep them in the file `path`, and the round before the last beside it."""
        self.path = path

    def before(self, number: int) -> Layers:
        """Return the layers that a round begins with; none before the lab has trained."""
        last = self._find(number)
        return {} if last is None else last.before if last.number == number else last.after

    def after(self, number: int) -> Layers:
        """Return the layers once a round is over, whether the lab has trained in it or not."""
        last = self._find(number)
        return {} if last is None else last.after

    def save(self, number: int, before: Layers, after: Layers) -> None:
        """Keep the layers of a round, whole or not at all."""
        parts = {"before": before, "after": after}
        tensors = {f"{part}/{name}": tensor for part, layers in parts.items() for name, tensor in layers.items()}
        write_generation(self.path, save(tensors, {ROUND: json.dumps({CHECKSUM: BLANK, ROUND: number})}))

    def forget(self) -> None:
        """Begin without any."""
        forget_generations(self.path)

    def _find(self, number: int) -> Trained | None:
        """Return the last training in this round or before it, if the lab has had one."""
        kept = [path for path in (self.path, find_older(self.path)) if path.exists()]
        found = [trained for path in kept if (trained := _read(path)) is not None]
        if kept and not found:
            raise DamagedError(f"{self.path}: is damaged; restore it from a backup, or remove it to begin without")
        return next((each for each in found if each.number <= number), None)


def _read(path: Path) -> Trained | None:
    """Return what a file holds; None, which is said, if it is damaged."""
    try:
        content = read_state(path)
    except DamagedError as error:
        log.warning("%s", error)
        return None
    layers: dict[str, Layers] = {"before": {}, "after": {}}
    for key, tensor in load(content).items():
        part, name = key.split("/", 1)
        layers[part][name] = tensor
    return Trained(int(json.loads(read_metadata(content)[ROUND])[ROUND]), layers["before"], layers["after"])
