"""The quality of FixMatch's pseudo-labels over the rounds, which only an experiment with all masks can measure."""

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
    """Scores of the confident predictions after a round, over all pixels of all labs' training images."""

    round: int
    sure: float
    """Share of the pixels with a confident prediction."""
    right: float
    """Share of the confident predictions that are right."""
    precision: float
    """Precision of confident predictions of the second class."""
    recall: float
    """Share of the second class's pixels with a confident, right prediction."""


class WatchingExchange(LocalExchange):
    """Labs in this process, whose pseudo-labels are scored whenever they score a network."""

    def __init__(
        self, clients: Mapping[str, Client], config: Phase2Config, truths: Mapping[str, Sequence[Truth]], path: Path
    ) -> None:
        """Reach these labs; `truths` are the masks of their training images, `path` the file for the scores."""
        super().__init__({name: client.answer for name, client in clients.items()})
        self.opened, self.config, self.truths, self.path = dict(clients), config, truths, path

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        """Score the pseudo-labels first if this is a request to score a network, then ask the labs."""
        for request in list(requests.values())[:1]:
            if request.kind == "evaluate":
                self.look(request)
        return super().ask(requests, deadline)

    def look(self, request: Request) -> None:
        """Score the pseudo-labels of the network in a request."""
        network, number = load_network(request.arrays, self.config), int(request.settings["round"])
        counts = torch.zeros(6, dtype=torch.float64)
        for name, client in self.opened.items():
            lab = client.open_lab(self.config)
            for image, truth in zip(lab.unlabeled, self.truths[name], strict=True):
                weak = lab.staining.vary(image[None], numpy_stream(number, "pseudo-labels", name))[0]
                classes, is_sure = label_sure(predict_logits(network, weak)[None], self.config.fixmatch)
                counts += count(classes[0], is_sure[0] > 0, to_truth(truth))
        points = [point for point in read_points(self.path) if point.round != number]
        points.append(summarize(number, counts))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps([to_values(point) for point in points]))


def count(classes: torch.Tensor, is_sure: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return six counts of pixels: all, sure, sure and right, surely second class, the same and right, second class."""
    second = is_sure & (classes == 1)
    parts = (torch.ones_like(is_sure), is_sure, is_sure & (classes == truth), second, second & (truth == 1), truth == 1)
    return torch.stack([part.sum() for part in parts]).double()


def summarize(number: int, counts: torch.Tensor) -> PseudoLabels:
    """Return the shares, which are 0 if there is nothing to count."""
    pixels, sure, right, second, hit, there = counts.tolist()
    return PseudoLabels(
        round=number,
        sure=sure / max(pixels, 1),
        right=right / max(sure, 1),
        precision=hit / max(second, 1),
        recall=hit / max(there, 1),
    )


def read_points(path: Path) -> list[PseudoLabels]:
    """Return the scores so far."""
    return [parse(PseudoLabels, point, str(path)) for point in json.loads(path.read_text())] if path.exists() else []
