"""How good FixMatch's pseudo-labels are over the rounds: no lab can know that, but we hold the masks."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from bottlegan.core.config import document, parse, to_values
from bottlegan.core.seeding import numpy_stream
from bottlegan.data.labels import Truth
from bottlegan.federated.client.client import Client
from bottlegan.federated.protocol.exchange import Absence, LocalExchange, Reply, Request
from bottlegan.federated.protocol.phase2 import Phase2Config, load_network
from bottlegan.training.fixmatch import label_sure
from bottlegan.training.task import predict_logits, to_truth


@document
class PseudoLabels:
    """What the network is sure of after a round, over all pixels of all labs' training images."""

    round: int
    sure: float
    """Share of the pixels that it is sure of."""
    right: float
    """Share of these whose class is right."""
    precision: float
    """Share of the pixels that it surely takes for the second class that are of it."""
    recall: float
    """Share of the second class that it surely takes for it."""


class WatchingExchange(LocalExchange):
    """Labs in this process, whose pseudo-labels are looked at whenever they are asked to score a network."""

    def __init__(
        self, clients: Mapping[str, Client], config: Phase2Config, truths: Mapping[str, Sequence[Truth]], path: Path
    ) -> None:
        """Take the labs, the masks of their training images, and the file for what is found."""
        super().__init__({name: client.answer for name, client in clients.items()})
        self.opened, self.config, self.truths, self.path = dict(clients), config, truths, path

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        """Ask all of them, and look first if it is for scores."""
        for request in list(requests.values())[:1]:
            if request.kind == "evaluate":
                self.look(request)
        return super().ask(requests, deadline)

    def look(self, request: Request) -> None:
        """Write down how good the pseudo-labels of a network are."""
        network, number = load_network(request.arrays, self.config), int(request.settings["round"])
        counts = torch.zeros(6, dtype=torch.float64)
        for name, client in self.opened.items():
            lab = client.open_lab(self.config)
            for image, truth in zip(lab.unlabeled, self.truths[name], strict=True):
                weak = lab.staining.vary(image[None], numpy_stream(number, "pseudo-labels", name))[0]
                found, sure = label_sure(predict_logits(network, weak)[None], self.config.fixmatch)
                counts += count(found[0], sure[0] > 0, to_truth(truth))
        points = [each for each in read_points(self.path) if each.round != number]
        points.append(summarize(number, counts))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps([to_values(each) for each in points]))


def count(found: torch.Tensor, sure: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return how many pixels there are, sure, sure and right, surely of the second class, that rightly, and of it."""
    second = sure & (found == 1)
    parts = (torch.ones_like(sure), sure, sure & (found == truth), second, second & (truth == 1), truth == 1)
    return torch.stack([part.sum() for part in parts]).double()


def summarize(number: int, counts: torch.Tensor) -> PseudoLabels:
    """Return the shares; of nothing they are 0."""
    pixels, sure, right, second, hit, there = counts.tolist()
    return PseudoLabels(
        round=number,
        sure=sure / max(pixels, 1),
        right=right / max(sure, 1),
        precision=hit / max(second, 1),
        recall=hit / max(there, 1),
    )


def read_points(path: Path) -> list[PseudoLabels]:
    """Return what was found so far."""
    return [parse(PseudoLabels, each, str(path)) for each in json.loads(path.read_text())] if path.exists() else []
