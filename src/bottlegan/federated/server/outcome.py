"""The result of a federation: the document in its network's file, and the scores as a table."""

from collections.abc import Mapping
from pathlib import Path

from bottlegan import __version__
from bottlegan.federated.protocol.privacy import PrivacyConfig
from bottlegan.federated.server.config import FederationConfig
from bottlegan.federated.server.folder import STYLES
from bottlegan.federated.server.history import History, RoundRecord
from bottlegan.models.network_file import NetworkDocument, digest_model
from bottlegan.models.weights import read_weights

HEADS = {"iou": "IOU", "dice": "Dice", "accuracy": "accuracy", "balanced_accuracy": "balanced", "auroc": "AUROC"}
"""Column heads of a table of scores, in this order; `ece` and `nll` come last."""


def describe_network(config: FederationConfig, folder: Path, history: History) -> NetworkDocument:
    """Return the document for the file of the network that the federation in `folder` has trained."""
    scored = find_scored(history)
    phase2 = config.phase2
    return NetworkDocument(
        task=phase2.task,
        network=phase2.network,
        crop=phase2.training.crop,
        mode=phase2.mode,
        model=digest_model(read_weights(folder / STYLES)) if phase2.mode == "normalize" else "",
        temperature=1.0 if scored is None else scored.temperature or 1.0,
        scores={} if scored is None else scored.scores,
        weights="0" * 64,
        record={
            "software": f"bottlegan {__version__}",
            "rounds": len(history.rounds),
            "labs": len({name for record in history.rounds for name in record.trained}),
            "seed": config.seed,
            **_describe_privacy(config.privacy, history),
        },
    )


def _describe_privacy(privacy: PrivacyConfig, history: History) -> dict[str, str | int | float]:
    """Return how private the training was, for the network's file."""
    fields: dict[str, str | int | float] = {"secure_aggregation": "yes"} if privacy.secure else {}
    if history.rounds and history.rounds[-1].epsilon is not None:
        fields |= {"epsilon": history.rounds[-1].epsilon, "delta": privacy.delta, "noise_at": privacy.noise_at}
    return fields


def find_scored(history: History) -> RoundRecord | None:
    """Return the last round that was scored, if any."""
    return next((record for record in reversed(history.rounds) if record.scores), None)


def format_scores(history: History) -> str:
    """Return the last scores as text: for each client, for all images together, and for each class."""
    scored = find_scored(history)
    if scored is None:
        return "No client has test images, so nothing was scored.\n"
    keys = [key for key in (*HEADS, "ece", "nll") if key in scored.scores]
    rows = [*sorted(scored.each.items()), ("all", scored.scores)]
    wide = max(len("client"), *(len(name) for name, _ in rows))
    heads = [HEADS.get(key, key.upper()) for key in keys]
    lines = [f"After round {scored.number}:", "", "  ".join([f"{'client':<{wide}}", *(f"{head:>5}" for head in heads)])]
    lines += ["  ".join([f"{name:<{wide}}", *_cells(scores, keys, heads)]) for name, scores in rows]
    of_classes = {key: value for key, value in scored.scores.items() if "/" in key}
    if of_classes:
        lines += ["", *(f"{' of '.join(key.split('/', 1)):<40}  {value:.3f}" for key, value in of_classes.items())]
    return "\n".join(lines) + "\n"


def _cells(scores: Mapping[str, float], keys: list[str], heads: list[str]) -> list[str]:
    """Return a row's cells. Some scores can be missing, such as the AUROC of a lab with one class only."""
    wide = [max(5, len(head)) for head in heads]
    return [f"{scores[key]:{w}.3f}" if key in scores else f"{'-':>{w}}" for key, w in zip(keys, wide, strict=True)]
