"""FedBN: a lab keeps its own normalization layers, with their statistics.

They are stored on the lab's disk by round, so that a repeated request starts from the same layers. The server receives
and averages them like all others, but the lab ignores the average.
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
    """The layers before and after a round in which the lab trained."""

    number: int
    before: Layers
    after: Layers


class OwnLayers:
    """The layers of the last two rounds in which the lab trained.

    The server saves its state after each round, in two generations, so it can never repeat an earlier round.
    """

    def __init__(self, path: Path) -> None:
        """Keep the layers in the file `path`, and those of the round before in a file beside it."""
        self.path = path

    def before(self, number: int) -> Layers:
        """Return the layers at the start of a round; none before the lab has trained."""
        last = self._find(number)
        return {} if last is None else last.before if last.number == number else last.after

    def after(self, number: int) -> Layers:
        """Return the layers at the end of a round, whether the lab trained in it or not."""
        last = self._find(number)
        return {} if last is None else last.after

    def save(self, number: int, before: Layers, after: Layers) -> None:
        """Write the layers of a round atomically."""
        parts = {"before": before, "after": after}
        tensors = {f"{part}/{name}": tensor for part, layers in parts.items() for name, tensor in layers.items()}
        write_generation(self.path, save(tensors, {ROUND: json.dumps({CHECKSUM: BLANK, ROUND: number})}))

    def forget(self) -> None:
        """Delete all layers."""
        forget_generations(self.path)

    def _find(self, number: int) -> Trained | None:
        """Return the lab's last training in this round or an earlier one, if any."""
        kept = [path for path in (self.path, find_older(self.path)) if path.exists()]
        trainings = [trained for path in kept if (trained := _read(path)) is not None]
        if kept and not trainings:
            raise DamagedError(f"{self.path}: is damaged; restore it, or delete it to start from the server's layers")
        return next((training for training in trainings if training.number <= number), None)


def _read(path: Path) -> Trained | None:
    """Return the content of a file; log a warning and return None if it is damaged."""
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
