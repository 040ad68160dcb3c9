"""What each protection hides and costs: the attacks of a curious server, beside the scores of the network."""

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
"""Rounds that are attacked, spread over all of them, the first and the last included."""
HEAD_BIAS = "head.bias"
CLIP, DELTA = 1.0, 1e-5
EPSILON = 8.0
"""What is usually called a good guarantee."""
SMALL = NetworkConfig(arguments={"width": 4, "depth": 2})


class Curious(LocalExchange):
    """Labs in this process, and a server that keeps what it sees of their training."""

    def __init__(self, clients: Mapping[str, Client], privacy: PrivacyConfig) -> None:
        """Reach these labs."""
        super().__init__({name: client.answer for name, client in clients.items()})
        self.privacy = privacy
        self.starts: dict[int, Weights] = {}
        self.updates: dict[int, dict[str, Floats]] = {}

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        """Ask, and keep what training requests and replies tell."""
        replies = super().ask(requests, deadline)
        for name, request in requests.items():
            reply = replies[name]
            if request.kind == "train" and isinstance(reply, Reply):
                number = int(request.settings["round"])
                self.starts[number] = request.arrays
                known = self.updates.setdefault(number, {})
                if not self.privacy.active:
                    known[name] = to_row(reply.arrays, request.arrays)
                elif not self.privacy.secure:
                    row = from_tensor(reply.arrays[UPDATE])
                    known[name] = Grid(self.privacy, len(requests), row.size).from_whole(row)
        return replies

    def list_seen(self, final: Weights, numbers: list[int]) -> list[Seen]:
        """Return what is known of some rounds; the server only averages, so that weights tell the average."""
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
    """Return, for each protection, how well each attack works, what the network is worth, and epsilon.

    Args:
        scale: `cpu` for the labs of Table 1, all in the reference stain; `smoke` for few and small ones.
        data: Folder of PESO patches.
        rounds: How long they train.
        images: How many training images of each lab are looked for, at most, beside as many others.
        progress: Where to report progress.
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
    """Return few labs of procedural tissue, all with labels."""
    contents = draw_contents()
    sizes = {patch: (each.mask.shape[0], each.mask.shape[1]) for patch, each in contents.items()}
    spec = replace(SMOKE, labeled_clients=SMOKE.clients, windows=2 * SMOKE.clients)
    return World(draw_partition(sizes, spec, SEED, 0), contents)


def list_protections(rounds: int) -> dict[str, PrivacyConfig]:
    """Return what is compared."""
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
    smallest = min(min(each.image.shape[:2]) for lab in labs for each in lab.labeled)
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
    shares = {lab.name: float(np.mean([(each.truth == 1).mean() for each in lab.labeled])) for lab in labs}
    spent = Spent(rounds=rounds, precision=rounds / privacy.noise**2) if privacy.noise else Spent()
    lengths = [float(np.linalg.norm(row)) for known in server.updates.values() for row in known.values()]
    return {
        **attack(candidates, seen, state.weights, config.phase2),
        "property, r": find_property(seen[0], shares, HEAD_BIAS),
        "IOU": state.history.rounds[-1].scores["iou"],
        "noise": privacy.noise,
        "epsilon": find_epsilon(spent, DELTA) if privacy.noise else None,
        "median length of updates": float(np.median(lengths)) if lengths else None,
    }
