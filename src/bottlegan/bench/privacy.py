"""What each protection hides and what it costs: attacks of a curious server, and the network's scores."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bottlegan.bench.privacy_attacks import Seen, attack, draw_candidates, find_property
from bottlegan.bench.privacy_styles import bench_styles
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.data.partition import draw_partition
from bottlegan.federated.client.client import Client
from bottlegan.federated.client.holdings import hold
from bottlegan.federated.protocol.accounting import Spent, find_epsilon, find_noise
from bottlegan.federated.protocol.exchange import Absence, LocalExchange, Reply, Request
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.protocol.privacy import UPDATE, Floats, Grid, PrivacyConfig, from_tensor, to_row
from bottlegan.federated.server.config import FederationConfig, RoundsConfig, StrategyConfig
from bottlegan.federated.server.federation import run_federation
from bottlegan.models.networks import NetworkConfig, Weights
from bottlegan.reproduce.paired import Scale
from bottlegan.reproduce.world import SMOKE, LabData, World, draw_contents, draw_world
from bottlegan.training.task import TrainingConfig

SEED = 0
ATTACKED = 3
"""Number of attacked rounds, evenly spaced from the first to the last."""
HEAD_BIAS = "head.bias"
CLIP, DELTA = 1.0, 1e-5
EPSILON = 8.0
"""Commonly considered a good guarantee."""
SMALL = NetworkConfig(arguments={"width": 4, "depth": 2})


class Curious(LocalExchange):
    """Labs in this process, and a server that records what it sees of their training."""

    def __init__(self, clients: Mapping[str, Client], privacy: PrivacyConfig) -> None:
        """Reach these labs."""
        super().__init__({name: client.answer for name, client in clients.items()})
        self.privacy = privacy
        self.starts: dict[int, Weights] = {}
        self.updates: dict[int, dict[str, Floats]] = {}

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        """Ask the labs, and record training requests and replies."""
        replies = super().ask(requests, deadline)
        for name, request in requests.items():
            reply = replies[name]
            if request.kind == "train" and isinstance(reply, Reply):
                number = int(request.settings["round"])
                self.starts[number] = request.arrays
                updates = self.updates.setdefault(number, {})
                if not self.privacy.active:
                    updates[name] = to_row(reply.arrays, request.arrays)
                elif not self.privacy.secure:
                    row = from_tensor(reply.arrays[UPDATE])
                    updates[name] = Grid(self.privacy, len(requests), row.size).from_whole(row)
        return replies

    def list_seen(self, final: Weights, numbers: list[int]) -> list[Seen]:
        """Return the records of some rounds. The server only averages, so the weights reveal the average update."""
        after = {number - 1: weights for number, weights in self.starts.items()} | {max(self.starts): final}
        return [
            Seen(number, self.starts[number], to_row(after[number], self.starts[number]), self.updates[number])
            for number in numbers
        ]


def bench_privacy(
    scale: Scale = "cpu",
    data: Path | None = None,
    rounds: int = 25,
    images: int = 12,
    progress: Progress | None = None,
) -> dict[str, Json]:
    """Return, for each protection, the success of each attack, the network's scores, and epsilon.

    Args:
        scale: `cpu` for the labs of Table 1, all in the reference stain; `smoke` for a few small ones.
        data: Folder of PESO patches.
        rounds: Number of training rounds.
        images: Most training images per lab that the attacks look for, among as many other images.
        progress: Receives progress.
    """
    progress = progress or Silent()
    torch.set_num_threads(1)
    world = draw_small_world() if scale == "smoke" else draw_world(scale, "mixtures", data, SEED, 0)
    labs = [lab for lab in world.labs("reference") if lab.labeled]
    figures: dict[str, Json] = {"labs": len(labs), "rounds": rounds, "delta": DELTA}
    ways = list_protections(rounds)
    rows: dict[str, Json] = {}
    for name, privacy in progress.track(ways.items(), "protections", len(ways)):
        network = SMALL if scale == "smoke" else NetworkConfig()
        rows[name] = measure(labs, privacy, rounds, images, network)
    return figures | {"rows": rows, "styles": bench_styles(2 if scale == "smoke" else 10, SEED, progress)}


def draw_small_world() -> World:
    """Return a few labs with procedural tissue, all with labels."""
    contents = draw_contents()
    sizes = {patch: (content.mask.shape[0], content.mask.shape[1]) for patch, content in contents.items()}
    spec = replace(SMOKE, labeled_clients=SMOKE.clients, windows=2 * SMOKE.clients)
    return World(draw_partition(sizes, spec, SEED, 0), contents)


def list_protections(rounds: int) -> dict[str, PrivacyConfig]:
    """Return the protections to compare."""
    strong = find_noise(rounds, EPSILON, DELTA)
    return {
        "none": PrivacyConfig(),
        "secure": PrivacyConfig(secure=True),
        "secure, noise .02": PrivacyConfig(secure=True, clip=CLIP, noise=0.02),
        "secure, noise .1": PrivacyConfig(secure=True, clip=CLIP, noise=0.1),
        "noise .02 at labs": PrivacyConfig(clip=CLIP, noise=0.02),
        f"secure, epsilon {EPSILON:g}": PrivacyConfig(secure=True, clip=CLIP, noise=strong),
    }


def measure(
    labs: list[LabData], privacy: PrivacyConfig, rounds: int, images: int, network: NetworkConfig
) -> dict[str, Json]:
    """Return the figures of one protection."""
    smallest = min(min(sample.image.shape[:2]) for lab in labs for sample in lab.labeled)
    training = TrainingConfig(crop=min(TrainingConfig().crop, smallest))
    config = FederationConfig(
        seed=SEED,
        phase2=Phase2Config(mode="plain", rounds=rounds, training=training, network=network),
        strategy=StrategyConfig(name="fedavg", uniform=True, robust="none"),
        rounds=RoundsConfig(evaluate_every=rounds),
        privacy=privacy,
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        clients = {lab.name: Client(hold(lab.train, lab.labeled, lab.test), out / "labs" / lab.name) for lab in labs}
        server = Curious(clients, privacy)
        state = run_federation(server, config, out / "run")
    attacked = sorted({int(number) for number in np.linspace(1, rounds, ATTACKED)})
    seen = server.list_seen(state.weights, attacked)
    candidates = draw_candidates({lab.name: (lab.labeled[:images], lab.test) for lab in labs}, SEED)
    shares = {lab.name: float(np.mean([(sample.truth == 1).mean() for sample in lab.labeled])) for lab in labs}
    spent = Spent(rounds=rounds, precision=rounds / privacy.noise**2) if privacy.noise else Spent()
    lengths = [float(np.linalg.norm(row)) for updates in server.updates.values() for row in updates.values()]
    return {
        **attack(candidates, seen, state.weights, config.phase2),
        "property, r": find_property(seen[0], shares, HEAD_BIAS),
        "IOU": state.history.rounds[-1].scores["iou"],
        "noise": privacy.noise,
        "epsilon": find_epsilon(spent, DELTA) if privacy.noise else None,
        "median length of updates": float(np.median(lengths)) if lengths else None,
    }
