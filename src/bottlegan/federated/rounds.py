"""Phase 2, the server's half: rounds that survive what clients and machines do.

Each round asks some clients, leaves out by name what did not come or cannot be right, aggregates the rest and saves
itself. A run that was killed goes on after its last round, and ends with the same bytes as one that was not.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from bottlegan.config import document, to_values
from bottlegan.errors import ConfigError, FederationError
from bottlegan.federated.checkpoint import History, RoundRecord, load_rounds, save_rounds
from bottlegan.federated.exchange import Absence, Exchange, Kind, Reply, Request
from bottlegan.federated.phase2 import Phase2Config, Weights, initial_weights
from bottlegan.federated.strategies import Aggregator, StrategyConfig
from bottlegan.federated.validation import find_fault, find_oversized, limit_shares
from bottlegan.metrics.tally import SIZE, compute_scores
from bottlegan.progress import Progress, Silent
from bottlegan.seeding import numpy_stream

TALLY = "tally"
Examples = Mapping[str, int]
"""How many images each client trains on; 0 for those that only score. Others are not asked for anything."""


@document
class RoundsConfig:
    """What the server does in each round."""

    clients: int = 0
    """Clients drawn in each round, of those that have something to train on; 0 for all of them."""
    least: int = 2
    """Replies without which a round counts for nothing."""
    deadline: float = 600.0
    """Seconds that clients have to reply."""
    norm_bound: float = 10.0
    """How many times longer than the median an update may be, and how many times more a client may weigh."""
    evaluate_every: int = 10
    """Rounds between two scorings on the clients' test images; the last round is always scored."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.clients < 0 or min(self.least, self.evaluate_every) < 1 or min(self.deadline, self.norm_bound) <= 0:
            raise ConfigError("rounds: least and evaluate_every must be at least 1, deadline and norm_bound above 0")


@dataclass(frozen=True)
class Plan:
    """All that decides what comes of the rounds, besides the clients."""

    phase2: Phase2Config
    strategy: StrategyConfig
    rounds: RoundsConfig
    seed: int


@dataclass
class State:
    """Where a run is: the round that it has finished, and what goes into the next."""

    finished: int
    weights: Weights
    aggregator: Aggregator
    history: History
    tallies: dict[str, Tensor] = field(default_factory=dict)
    """What each client counted when the network was last scored."""


def run_rounds(
    exchange: Exchange,
    examples: Examples | Callable[[int], Examples],
    plan: Plan,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
    *,
    label: str = "rounds",
) -> State:
    """Train for all rounds with the clients in `examples`, or in what it returns for each round.

    With a `checkpoint`, the run is saved there after every round, and goes on from there if it exists.
    """
    progress = progress or Silent()
    state = begin(plan, checkpoint)
    numbers = range(state.finished + 1, plan.phase2.rounds + 1)
    for number in progress.track(numbers, label, len(numbers)):
        members = examples(number) if callable(examples) else examples
        record = run_round(exchange, members, plan, state, number)
        progress.event("round", number=number, left_out=dict(record.left_out), scores=dict(record.scores))
        state.finished, state.history = number, replace(state.history, rounds=(*state.history.rounds, record))
        if checkpoint is not None:
            save_rounds(checkpoint, plan, state)
    return state


def begin(plan: Plan, checkpoint: Path | None) -> State:
    """Return where to go on: at the checkpoint, or at the very beginning."""
    weights = initial_weights(plan.phase2, plan.seed)
    state = State(0, weights, Aggregator(plan.strategy), History())
    if checkpoint is not None and checkpoint.exists():
        load_rounds(checkpoint, plan, state)
    return state


def run_round(exchange: Exchange, examples: Examples, plan: Plan, state: State, number: int) -> RoundRecord:
    """Train one round, change the weights of `state`, and return what happened."""
    chosen = draw_clients(exchange.clients(), examples, plan, number)
    request = write_request("train", plan, state.weights, number)
    replies = exchange.ask(dict.fromkeys(chosen, request), plan.rounds.deadline)
    good, left_out = sift(replies, state.weights, plan.rounds.norm_bound)
    if len(good) < plan.rounds.least:
        why = (
            "; ".join(f"{name}: {reason}" for name, reason in list(left_out.items())[:4])
            or "no client with images to train on was there"
        )
        raise FederationError(
            f"round {number}: {len(good)} usable replies, at least {plan.rounds.least} are needed ({why}); "
            "see to these clients, then resume"
        )
    shares = limit_shares({name: examples[name] for name in good}, plan.rounds.norm_bound)
    state.weights = state.aggregator.aggregate(number, state.weights, good, shares)
    tallies: dict[str, Tensor] = {}
    if number % plan.rounds.evaluate_every == 0 or number == plan.phase2.rounds:
        tallies = score_clients(exchange, examples, plan, state.weights, number)
        state.tallies = tallies
    return RoundRecord(
        number=number,
        trained=tuple(sorted(good)),
        left_out=left_out,
        scores=compute_scores(torch.stack(list(tallies.values())).sum(0)) if tallies else {},
        each={name: compute_scores(found) for name, found in tallies.items()},
    )


def write_request(kind: Kind, plan: Plan, weights: Weights, number: int) -> Request:
    """Return what all clients are asked in a round: all there is to know, as their processes may be new ones."""
    config = json.dumps(to_values(plan.phase2), sort_keys=True)
    return Request(kind, weights, {"round": number, "seed": plan.seed, "config": config})


def draw_clients(present: Sequence[str], examples: Examples, plan: Plan, number: int) -> list[str]:
    """Return who trains in a round, drawn from our own seed among those present that have something to train on."""
    able = sorted(name for name in present if examples.get(name, 0) > 0)
    wanted = plan.rounds.clients or len(able)
    if len(able) <= wanted:
        return able
    drawn = numpy_stream(plan.seed, "clients", number).choice(len(able), wanted, replace=False)
    return [able[row] for row in sorted(drawn.tolist())]


def sift(
    replies: Mapping[str, Reply | Absence], start: Weights, bound: float
) -> tuple[dict[str, Weights], dict[str, str]]:
    """Return the replies that can be averaged, and why the others cannot, by client."""
    shapes = {name: tuple(tensor.shape) for name, tensor in start.items()}
    good: dict[str, Weights] = {}
    left_out: dict[str, str] = {}
    for name, reply in replies.items():
        fault = reply.reason if isinstance(reply, Absence) else find_fault(reply.arrays, shapes)
        if fault is None and isinstance(reply, Reply):
            good[name] = reply.arrays
        else:
            left_out[name] = fault or ""
    for name, reason in find_oversized(good, start, bound).items():
        left_out[name] = reason
        del good[name]
    return good, left_out


def score_clients(
    exchange: Exchange, examples: Examples, plan: Plan, weights: Weights, number: int
) -> dict[str, Tensor]:
    """Return the tally of each client that has test images and sent a valid one."""
    asked = [name for name in exchange.clients() if name in examples]
    request = write_request("evaluate", plan, weights, number)
    replies = exchange.ask(dict.fromkeys(asked, request), plan.rounds.deadline)
    shapes = {TALLY: (SIZE,)}
    tallies = {}
    # In one order, because sums of floats depend on it.
    for name, reply in sorted(replies.items()):
        if isinstance(reply, Absence) or find_fault(reply.arrays, shapes, torch.float64):
            continue
        found = reply.arrays[TALLY]
        intersection, union, _, pixels = found[:4].tolist()
        if pixels > 0 and intersection <= union <= pixels and bool((found >= 0).all()):
            tallies[name] = found
    return tallies
