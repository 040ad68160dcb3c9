"""One round on the server: asks clients to train, leaves out invalid replies, and aggregates the rest."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bottlegan.core.config import to_values
from bottlegan.core.errors import ConfigError, FederationError
from bottlegan.core.seeding import numpy_stream
from bottlegan.federated.flower.strategies import Aggregator
from bottlegan.federated.protocol.exchange import LOSS, Absence, Exchange, Kind, Reply, Request
from bottlegan.federated.protocol.phase2 import TALLY, draw_network
from bottlegan.federated.protocol.validation import (
    clip_updates,
    find_bad_number,
    find_bad_tally,
    find_fault,
    find_negative,
    limit_shares,
)
from bottlegan.federated.server.config import FederationConfig
from bottlegan.federated.server.history import History, RoundRecord
from bottlegan.federated.server.members import Members
from bottlegan.federated.server.private import run_private
from bottlegan.federated.server.suspicion import measure, name_suspects
from bottlegan.metrics.tally import Layout, compute_scores, compute_temperature, count_all
from bottlegan.models.network_file import read_start
from bottlegan.models.networks import Weights, exchanged, list_statistics
from bottlegan.training.task import lay_out

ALL = "all labs"
Examples = Mapping[str, int]
"""Number of images that each client trains on; 0 for those that only score. Other clients are not asked."""


@dataclass
class State:
    """The state of a run after its last finished round."""

    finished: int
    weights: Weights
    aggregator: Aggregator
    history: History
    noise_key: str = ""
    """Key of the server's own noise. A repeated round with the same sum gets the same noise."""


def begin(config: FederationConfig) -> State:
    """Return the initial state, with new weights or those of a file."""
    network = draw_network(config.phase2, config.seed).network
    weights = exchanged(network)
    if config.start is not None:
        weights, _ = read_start(config.start, weights)
    statistics = list_statistics(network)
    if config.privacy.noise and statistics:
        raise ConfigError(
            "privacy.noise would drive the variances of batch norm below zero; use a network with group norm instead"
        )
    own_noise = config.privacy.noise > 0 and config.privacy.noise_at == "server"
    key = secrets.token_hex(32) if own_noise else ""
    return State(0, weights, Aggregator(config.strategy, statistics), History(), key)


def run_round(
    exchange: Exchange, examples: Examples, config: FederationConfig, state: State, number: int, *, members: Members
) -> RoundRecord:
    """Train one round, update the weights in `state`, and return the round's record."""
    chosen = draw_clients(exchange.clients(), examples, config, number)
    request = write_request("train", config, state.weights, number)
    if config.privacy.active:
        average, summed, left_out = run_private(
            exchange, chosen, request, config, number=number, noise_key=state.noise_key
        )
        # The server optimizer sees one reply: the mean.
        state.weights = state.aggregator.aggregate(number, state.weights, {ALL: average}, {ALL: 1})
        record = RoundRecord(number=number, trained=tuple(summed), left_out=left_out)
        return finish(exchange, examples, config, state, record, members=members)
    replies = exchange.ask(dict.fromkeys(chosen, request), config.rounds.deadline)
    good, left_out = sift(replies, state.weights)
    if len(good) < config.rounds.least:
        why = (
            "; ".join(f"{name}: {reason}" for name, reason in list(left_out.items())[:4])
            or "no client with training images was connected"
        )
        raise FederationError(
            f"round {number}: {len(good)} usable replies, at least {config.rounds.least} are needed ({why}); "
            "fix these clients, then resume"
        )
    trained = {name: good[name].arrays for name in sorted(good)}
    learned = {key: tensor for key, tensor in state.weights.items() if key not in state.aggregator.averaged}
    standing = measure(trained, learned)
    suspects = name_suspects([record.standing for record in state.history.rounds], standing)
    counted = [name for name in trained if config.strategy.robust == "none" or name not in suspects]
    left_out |= {name: f"suspected: {suspects[name]}" for name in trained if name not in counted}
    clipped = clip_updates(trained, state.weights, config.rounds.length_bound)
    counts = {name: 1 if config.strategy.uniform else examples[name] for name in counted}
    shares = limit_shares(counts, config.rounds.weight_bound)
    state.weights = state.aggregator.aggregate(number, state.weights, {name: clipped[name] for name in counted}, shares)
    record = RoundRecord(
        number=number,
        trained=tuple(counted),
        left_out=left_out,
        loss={name: good[name].numbers[LOSS] for name in counted},
        standing=standing,
        suspects=suspects,
    )
    return finish(exchange, examples, config, state, record, members=members)


def finish(
    exchange: Exchange,
    examples: Examples,
    config: FederationConfig,
    state: State,
    record: RoundRecord,
    *,
    members: Members,
) -> RoundRecord:
    """Add the scores to a round's record, if the round is to be scored."""
    number = record.number
    tallies: dict[str, Tensor] = {}
    unscored: dict[str, str] = {}
    if number % config.rounds.evaluate_every == 0 or number == config.phase2.rounds:
        tallies, unscored = score_clients(exchange, examples, config, state.weights, number, members=members)
    layout, names = lay_out(config.phase2.task), config.phase2.task.classes
    total = add_tallies(tallies, layout, config.rounds.weight_bound)
    return replace(
        record,
        scores=compute_scores(total, layout, names) if tallies else {},
        each={name: compute_scores(tally, layout, names) for name, tally in tallies.items()},
        unscored=unscored,
        temperature=compute_temperature(total, layout) if tallies else None,
    )


def write_request(kind: Kind, config: FederationConfig, weights: Weights, number: int) -> Request:
    """Return a round's request to all clients. It is complete, because a client may run in a new process."""
    settings = json.dumps(to_values(config.phase2), sort_keys=True)
    return Request(kind, weights, {"round": number, "seed": config.seed, "config": settings})


def draw_clients(present: Sequence[str], examples: Examples, config: FederationConfig, number: int) -> list[str]:
    """Draw the clients that train in a round, from those connected that have training images."""
    able = sorted(name for name in present if examples.get(name, 0) > 0)
    wanted = config.rounds.clients or len(able)
    if len(able) <= wanted:
        return able
    drawn = numpy_stream(config.seed, "clients", number).choice(len(able), wanted, replace=False)
    return [able[row] for row in sorted(drawn.tolist())]


def sift(replies: Mapping[str, Reply | Absence], start: Weights) -> tuple[dict[str, Reply], dict[str, str]]:
    """Return the valid replies, and the faults of the others, by client."""
    shapes = {name: tuple(tensor.shape) for name, tensor in start.items()}
    good: dict[str, Reply] = {}
    left_out: dict[str, str] = {}
    for name, reply in replies.items():
        if isinstance(reply, Absence):
            left_out[name] = reply.reason
        elif fault := find_bad_training(reply, shapes):
            left_out[name] = fault
        else:
            good[name] = reply
    return good, left_out


def find_bad_training(reply: Reply, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return what is wrong with a client's reply to `train`, if anything."""
    fault = find_fault(reply.arrays, shapes) or find_negative(reply.arrays)
    return fault or find_bad_number(reply.numbers, frozenset((LOSS,)))


def score_clients(
    exchange: Exchange, examples: Examples, config: FederationConfig, weights: Weights, number: int, *, members: Members
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tally of each client with test images, and the faults of the others."""
    asked = [name for name in exchange.clients() if name in examples]
    request = write_request("evaluate", config, weights, number)
    replies = exchange.ask(dict.fromkeys(asked, request), config.rounds.deadline)
    layout = lay_out(config.phase2.task)
    tallies: dict[str, Tensor] = {}
    unscored: dict[str, str] = {}
    # In a fixed order, because sums of floats depend on it.
    for name, reply in sorted(replies.items()):
        if isinstance(reply, Absence):
            unscored[name] = reply.reason
        elif fault := find_bad_tally(reply.arrays, TALLY, layout, members.clients[name].tested):
            unscored[name] = fault
        elif reply.arrays[TALLY].any():
            tallies[name] = reply.arrays[TALLY]
    return tallies, unscored


def add_tallies(tallies: Mapping[str, Tensor], layout: Layout, bound: float) -> Tensor:
    """Return the sum of all tallies, each weighing at most `bound` times the median."""
    counts = {name: count_all(tally, layout) for name, tally in tallies.items()}
    shares = limit_shares(counts, bound) if counts else {}
    parts = [tally * (shares[name] / counts[name]) for name, tally in tallies.items()]
    return torch.stack(parts).sum(0) if parts else torch.zeros(layout.size, dtype=torch.float64)
