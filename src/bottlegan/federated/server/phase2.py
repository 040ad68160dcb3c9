"""Phase 2 on the server: training rounds that tolerate failing clients and crashes.

A run that was killed resumes after its last finished round, and ends with the same bytes as an uninterrupted one.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bottlegan.core.errors import FederationError
from bottlegan.core.files import write_text
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.core.state import write_document
from bottlegan.federated.protocol.accounting import Spent, find_epsilon
from bottlegan.federated.protocol.exchange import Exchange
from bottlegan.federated.protocol.privacy import PrivacyConfig
from bottlegan.federated.server.checkpoint import load_rounds, save_rounds
from bottlegan.federated.server.config import FederationConfig
from bottlegan.federated.server.folder import CHECKPOINT, DAMAGED, HISTORY, NETWORK, SCORES
from bottlegan.federated.server.history import History, RoundRecord
from bottlegan.federated.server.outcome import describe_network, format_scores
from bottlegan.federated.server.phase1 import run_phase1
from bottlegan.federated.server.roster import Roster
from bottlegan.federated.server.rounds import State, begin, run_round
from bottlegan.imaging.files import Pixels
from bottlegan.models.network_file import save_network


def run_phase2(
    exchange: Exchange,
    config: FederationConfig,
    folder: Path,
    roster: Roster,
    *,
    reference_set: Sequence[Pixels] | None = None,
    progress: Progress | None = None,
    label: str = "rounds",
) -> State:
    """Train one network for all rounds, or the remaining ones, and write it to `folder`.

    Args:
        exchange: Reaches the clients.
        config: The settings.
        folder: The folder of the run, which is saved there after every round.
        roster: The clients, as `run_phase1` returns them. Clients that come later join before the next round.
        reference_set: The public reference set C, which phase 1 needs unless its method is `code`.
        progress: Where to report progress.
        label: Name of the rounds in the progress.
    """
    progress = progress or Silent()
    state = begin(config)
    if damage := load_rounds(folder / CHECKPOINT, config, state):
        progress.event(DAMAGED, text=damage)
    numbers = range(state.finished + 1, config.phase2.rounds + 1)
    for number in progress.track(numbers, label, len(numbers)):
        present = roster.wait(exchange, config.rounds)
        if roster.list_strangers(present) or roster.list_behind(present):
            run_phase1(exchange, config, folder, roster, reference_set=reference_set, progress=progress)
        examples = roster.count_examples(config.phase2, number)
        check_enough(roster, examples, present, config)
        record = run_round(exchange, examples, config, state, number, members=roster.members)
        record = account(config.privacy, state.history, record)
        state.finished, state.history = number, replace(state.history, rounds=(*state.history.rounds, record))
        save_rounds(folder / CHECKPOINT, config, state)
        write_document(folder / HISTORY, state.history)
        progress.event("round", **tell(record))
    save_network(folder / NETWORK, state.weights, describe_network(config, folder, state.history))
    write_text(folder / SCORES, format_scores(state.history))
    return state


def account(privacy: PrivacyConfig, before: History, record: RoundRecord) -> RoundRecord:
    """Add to a round's record how much of the labs' privacy has been spent, if there is noise."""
    if not privacy.noise:
        return record
    asked = History(rounds=(*before.rounds, record)).count_most_asked()
    spent = Spent(rounds=asked, precision=asked / privacy.noise**2)
    return replace(record, epsilon=find_epsilon(spent, privacy.delta))


def tell(record: RoundRecord) -> dict[str, Json]:
    """Return the fields of a round's event."""
    fields: dict[str, Json] = {"number": record.number, "loss": record.mean_loss, "scores": dict(record.scores)}
    if record.epsilon is not None:
        fields["epsilon"] = record.epsilon
    by_kind = {"left_out": record.left_out, "unscored": record.unscored, "suspects": record.suspects}
    fields |= {key: dict(reasons) for key, reasons in by_kind.items()}
    return fields | {"standing": {name: [own.cosine, own.length, own.nearest] for name, own in record.standing.items()}}


def check_enough(roster: Roster, examples: dict[str, int], present: Sequence[str], config: FederationConfig) -> None:
    """Raise `FederationError` if fewer clients can train than a round needs."""
    if sum(examples.get(name, 0) > 0 for name in present) >= config.rounds.least:
        return
    why = "; ".join(f"{name}: {reason}" for name, reason in list(roster.left_out.items())[:4])
    usual = "the others have no labels, which they need unless fixmatch has begun"
    raise FederationError(
        f"fewer than {config.rounds.least} of {len(present)} clients can train ({why or usual}); fix this, then resume"
    )
