"""FedBN: layers that a lab keeps to itself, on its disk, so that a round asked for twice begins at the same place.

Its own are the normalization layers of the network, with their statistics. The server gets and averages them like all
others, but what it sends back is not used here.
"""

from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from bottlegan.core.files import replacing

Layers = dict[str, Tensor]
ROUND = "round"


class OwnLayers:
    """The layers before and after the last round that the lab has trained in.

    The server saves itself after each round, so that only the last one can be asked for again.
    """

    def __init__(self, path: Path) -> None:
        """Keep them in the file `path`."""
        self.path = path

    def before(self, number: int) -> Layers:
        """Return the layers that a round begins with; none before the lab has trained."""
        last, layers = self._read()
        return layers["before"] if last == number else self.after(number)

    def after(self, number: int) -> Layers:
        """Return the layers once a round is over, whether the lab has trained in it or not."""
        last, layers = self._read()
        return layers["after"] if last <= number else {}

    def save(self, number: int, before: Layers, after: Layers) -> None:
        """Keep the layers of a round, whole or not at all."""
        parts = {"before": before, "after": after}
        tensors = {f"{part}/{name}": tensor for part, layers in parts.items() for name, tensor in layers.items()}
        with replacing(self.path) as temporary:
            save_file(tensors, temporary, metadata={ROUND: str(number)})

    def forget(self) -> None:
        """Begin without any."""
        self.path.unlink(missing_ok=True)

    def _read(self) -> tuple[int, dict[str, Layers]]:
        layers: dict[str, Layers] = {"before": {}, "after": {}}
        if not self.path.exists():
            return 0, layers
        with safe_open(self.path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - it is no dictionary
                part, name = key.split("/", 1)
                layers[part][name] = file.get_tensor(key).clone()
            return int(file.metadata()[ROUND]), layers
