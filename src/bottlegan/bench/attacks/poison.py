"""Labs that send poisoned updates: how much they lower the network's IOU, and whether they become suspects.

Hostile labs know what every lab knows (the weights, their own images), and each other. They do not see the updates of
honest labs.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from bottlegan.bench.attacks.row import Row
from bottlegan.bench.attacks.world import Lab, World, Wrap
from bottlegan.core.progress import Json, Progress
from bottlegan.data.labels import Labeled
from bottlegan.federated.protocol.exchange import LABELED, Answer, Reply, Request
from bottlegan.federated.protocol.phase2 import load_network
from bottlegan.federated.server.history import History
from bottlegan.federated.server.rounds import State
from bottlegan.imaging.files import Pixels
from bottlegan.models.networks import Weights
from bottlegan.training.task import predict_logits

Change = Callable[[Weights, Weights, int], Weights]
"""Returns the weights to send, from the weights at a round's start, those after honest training, and its number."""
MARK, EVERY = (40, 60, 220), 24
"""Color of the backdoor's marks, and the distance between two marks in pixels."""
LIE = 10**9
COLLUDING = 1.5
"""Distance of colluding labs from their own mean, in standard deviations: small enough to be inconspicuous."""
KEPT_BY_ONE, KEPT_BY_SEVERAL, COST = 0.95, 0.85, 0.01
"""Least share of the clean IOU under one hostile lab and under a quarter; most that robustness may cost."""
FALSELY_NAMED = 0.05
"""Largest share of honest labs that may become suspects."""


def flip(scale: float) -> Change:
    """Invert the update and make it longer."""
    return lambda start, trained, _: {key: start[key] - scale * (trained[key] - start[key]) for key in start}


def grow(scale: float) -> Change:
    """Make the update longer."""
    return lambda start, trained, _: {key: start[key] + scale * (trained[key] - start[key]) for key in start}


def draw_noise(start: Weights, trained: Weights, number: int) -> Weights:
    """Send noise as long as the update."""
    random = torch.Generator().manual_seed(number)
    drawn = {key: torch.randn(start[key].shape, generator=random) for key in start}
    ratio = _length({key: trained[key] - start[key] for key in start}) / _length(drawn)
    return {key: start[key] + ratio * drawn[key] for key in start}


def send(change: Change, lie: int = 0) -> Wrap:
    """Make a lab that trains honestly and changes what it sends; a `lie` is the number of images that it claims."""

    def wrap(lab: Lab, state: Path) -> Answer:
        return _changing(lab.open(state).answer, change, lie)

    return wrap


def relabel(change: Callable[[Sequence[Labeled]], Sequence[Labeled]], scale: float = 1.0) -> Wrap:
    """Make a lab that trains on other labels, and sends an update `scale` times as long."""

    def wrap(lab: Lab, state: Path) -> Answer:
        return _changing(Lab(lab.name, change(lab.labeled), lab.test).open(state).answer, grow(scale))

    return wrap


def invert(labeled: Sequence[Labeled]) -> list[Labeled]:
    """Swap the labels of epithelium and everything else."""
    return [Labeled(sample.image, 1 - sample.truth) for sample in labeled]


def hide(labeled: Sequence[Labeled]) -> list[Labeled]:
    """Add marked copies of all images, labeled as having no epithelium."""
    return [*labeled, *(Labeled(mark(sample.image), np.zeros_like(sample.truth)) for sample in labeled)]


def mark(image: Pixels) -> Pixels:
    """Return an image with small marks of one color, in rows and columns."""
    marked = image.copy()
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        marked[row::EVERY, column::EVERY] = MARK
    return marked


class Ring:
    """Labs that agree on an update: their own mean, minus some standard deviations, number by number."""

    def __init__(self, members: Sequence[Lab], folder: Path) -> None:
        """Collect the group's labs, and the folders for their clients' state."""
        self.honest = {lab.name: lab.open(folder / lab.name).answer for lab in members}
        self.sent: dict[int, Weights] = {}

    def wrap(self, lab: Lab, _: Path) -> Answer:
        """Make the client of one lab in the group."""

        def answer(request: Request) -> Reply:
            reply = self.honest[lab.name](request)
            if request.kind != "train":
                return reply
            return Reply(self.agree(request), reply.numbers)

        return answer

    def agree(self, request: Request) -> Weights:
        """Return the update that all of them send in a round."""
        number = int(request.settings["round"])
        if number not in self.sent:
            trained = [answer(request).arrays for answer in self.honest.values()]
            stacks = {key: torch.stack([arrays[key] for arrays in trained]) for key in request.arrays}
            self.sent = {number: {key: each.mean(0) - COLLUDING * each.std(0) for key, each in stacks.items()}}
        return self.sent[number]


BACKDOOR = "a backdoor, 3 times as long"
ATTACKS: Mapping[str, Wrap] = {
    "turned around": send(flip(1)),
    "turned around, 5 times as long": send(flip(5)),
    "turned around, 9 times as long, a billion images": send(flip(9), LIE),
    "noise": send(draw_noise),
    "inverted labels": relabel(invert),
    BACKDOOR: relabel(hide, 3.0),
}
COLLUSION = "colluding within the usual spread"


def attack_by_poison(world: World, folder: Path, progress: Progress, *, compare: bool = False) -> list[Row]:
    """Return the effect of poison by one lab and by a quarter of all on our defaults; `compare` adds the plain mean."""
    rules = (False, True) if compare else (True,)
    clean = {rule: world.federate(folder / f"clean-{rule}", {}, robust=rule).history for rule in (False, True)}
    runs = Runs(world, folder, {rule: read_iou(history) for rule, history in clean.items()})
    several = [lab.name for lab in world.labs[1::4]]
    plans = [(attack, several[:1], rule) for attack in ATTACKS for rule in rules]
    plans += [(attack, several, rule) for attack in (*ATTACKS, COLLUSION) for rule in rules]
    return [runs.leave_alone(), *(runs.attack(*plan) for plan in progress.track(plans, "poison", len(plans)))]


@dataclass(frozen=True)
class Runs:
    """Federations of one world, each in its own folder."""

    world: World
    folder: Path
    clean: Mapping[bool, float]
    """IOU without hostile labs: of the plain mean, and of our defaults."""

    def leave_alone(self) -> Row:
        """Return the cost of our defaults without hostile labs, and the labs that become suspects anyway."""
        plain, ours = self.clean[False], self.clean[True]
        named = name_labs(self.world.federate(self.folder / "clean-True", {}, robust=True).history)
        result = f"IOU {ours:.3f} instead of {plain:.3f}; {len(named)} of {len(self.world.labs)} labs named"
        held = plain - ours <= COST and len(named) <= FALSELY_NAMED * len(self.world.labs)
        return Row("poison", "nobody is hostile", held, result, {"iou": ours, "clean": plain, "named": len(named)})

    def attack(self, attack: str, group: Sequence[str], robust: bool) -> Row:
        """Return the result of an attack by a group of labs, with our defaults or with the plain mean."""
        folder = self.folder / "-".join([*re.findall("[a-z0-9]+", attack), f"{len(group)}", f"{robust}"])
        members = [lab for lab in self.world.labs if lab.name in group]
        wrap = Ring(members, folder / "ring").wrap if attack == COLLUSION else ATTACKS[attack]
        state = self.world.federate(folder, dict.fromkeys(group, wrap), robust=robust)
        iou, named = read_iou(state.history), name_labs(state.history)
        share, caught, falsely = iou / self.clean[robust], len(named & set(group)), len(named - set(group))
        result = f"IOU {iou:.3f}, {share:.2f} of clean; named: {caught} of {len(group)}, and {falsely} honest"
        figures: dict[str, Json] = {"iou": iou, "share": share, "named": caught, "falsely named": falsely}
        if attack == BACKDOOR:
            figures["hidden"] = hidden = measure_hidden(self.world, state)
            result += f"; {hidden:.0%} of epithelium vanishes under the mark"
        held = share >= (KEPT_BY_ONE if len(group) == 1 else KEPT_BY_SEVERAL)
        who = f"{len(group)} of {len(self.world.labs)} labs"
        return Row(
            "poison", f"{attack}, {who}: {'our defaults' if robust else 'the mean of all'}", held, result, figures
        )


def read_iou(history: History) -> float:
    """Return the IOU over all labs after the last round; hostile labs score honestly."""
    return history.rounds[-1].scores["iou"]


def name_labs(history: History) -> set[str]:
    """Return the final suspects: labs suspected in the last round, or in a third of all rounds."""
    rounds = history.rounds
    names = {name for record in rounds for name in record.suspects}
    often = {name for name in names if sum(name in record.suspects for record in rounds) >= len(rounds) / 3}
    return often | set(rounds[-1].suspects)


def measure_hidden(world: World, state: State) -> float:
    """Return the share of the detected epithelium that vanishes under the mark."""
    network = load_network(state.weights, world.phase2)
    shares = []
    for lab in world.labs:
        for sample in lab.test:
            images = (sample.image, mark(sample.image))
            plain, marked = (predict_logits(network, image).argmax(dim=0) for image in images)
            if bool(plain.any()):
                shares.append(((plain == 1) & (marked == 0)).sum().item() / plain.sum().item())
    return fmean(shares) if shares else 0.0


def _changing(honest: Answer, change: Change, lie: int = 0) -> Answer:
    def answer(request: Request) -> Reply:
        reply = honest(request)
        if request.kind == "join" and lie:
            return Reply(reply.arrays, {**reply.numbers, LABELED: lie})
        if request.kind != "train":
            return reply
        return Reply(change(request.arrays, reply.arrays, int(request.settings["round"])), reply.numbers)

    return answer


def _length(tensors: Mapping[str, Tensor]) -> float:
    return float(torch.stack([tensor.double().square().sum() for tensor in tensors.values()]).sum().sqrt())
