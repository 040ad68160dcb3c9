"""The state of a federation, from the folder of its run: tables for the terminal, and a page with curves."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bottlegan.core.errors import InputError
from bottlegan.core.state import read_document
from bottlegan.federated.server.folder import BEGUN, DAMAGED, FAILED, FINISHED, HISTORY, LOG, WAITING, holds_run
from bottlegan.federated.server.history import History, RoundRecord
from bottlegan.federated.server.members import Members, read_members
from bottlegan.federated.server.outcome import HEADS, find_scored
from bottlegan.quality.curves import Curve, draw_curves
from bottlegan.quality.report import Drawing, Table, write_report

ALL = "all labs"
MOST_CURVES = 8
"""Most labs with curves of their own; more could not be distinguished."""
AGREEMENT = "Agreement"
LABS = "Labs"
LOSS = "loss in training"
OF = "/"
"""Separates the name of a score from the name of its class."""


@dataclass(frozen=True)
class RunState:
    """The content of the folder of a run."""

    folder: Path
    members: Members
    history: History
    events: Sequence[dict[str, Any]]

    @property
    def metrics(self) -> list[str]:
        """Names of the scores over all classes."""
        return list(dict.fromkeys(name for record in self.history.rounds for name in record.scores if OF not in name))

    @property
    def planned(self) -> int:
        """The planned number of rounds."""
        return next((int(event["rounds"]) for event in reversed(self.events) if event["kind"] == BEGUN), 0)

    @property
    def status(self) -> str:
        """The state of the run in a sentence."""
        done = f"{len(self.history.rounds)} of {self.planned} rounds"
        last = self.events[-1] if self.events else {"kind": BEGUN}
        if last["kind"] == FINISHED:
            return f"Finished after {len(self.history.rounds)} rounds."
        if last["kind"] == FAILED:
            return f"Failed after {done}: {last['text'] or last['error']}"
        if last["kind"] == WAITING:
            return f"Waiting for {', '.join(last['clients'])}: {done} so far."
        return f"Running, or killed: {done} so far."


def read_run(folder: Path) -> RunState:
    """Read the state of a run, which may be in progress."""
    if not holds_run(folder) and not (folder / LOG).exists():
        raise InputError(f"{folder}: is not the folder of a federation; give the --out of bottlegan simulate")
    history = read_document(History, folder / HISTORY) if (folder / HISTORY).exists() else History()
    return RunState(folder, read_members(folder), history, read_events(folder / LOG))


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a log. A line that is still being written is skipped."""
    if not path.exists():
        return []
    events = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "kind" in event:
            events.append(event)
    return events


def list_damage(run: RunState) -> Table:
    """Return the damaged files, and the files used instead."""
    rows = [(str(event["text"]),) for event in run.events if event["kind"] == DAMAGED]
    return Table("Damaged files", "Damage found when the run was resumed, and the file used instead.", ("what",), rows)


def list_rounds(run: RunState) -> Table:
    """Return the table of all scored rounds and the last round."""
    shown = [record for record in run.history.rounds if record.scores or record == run.history.rounds[-1]]
    private = any(record.epsilon is not None for record in run.history.rounds)
    columns = ("round", "trained", "left out", "loss", *map(_head, run.metrics), "median lab")
    columns = (*columns, "epsilon") if private else columns
    rows = [
        (
            f"{record.number}",
            f"{len(record.trained)}",
            f"{len(record.left_out) + len(record.unscored)}",
            _format(record.mean_loss),
            *(_format(record.scores.get(name)) for name in run.metrics),
            _format(_find_typical(record)),
            *((_format(record.epsilon),) if private else ()),
        )
        for record in shown
    ]
    text = (
        "Scores are over the test images of all labs, as reported by the labs; the loss is the mean over labs. The "
        "last column is the first score of the median lab, which a few dishonest labs can hardly change."
    )
    return Table("Rounds", text, columns, rows)


def list_labs(run: RunState) -> Table:
    """Return the table of labs. If there are scores, the worst lab comes first."""
    scored = next((record.each for record in reversed(run.history.rounds) if record.each), {})
    names = sorted(run.members.clients, key=lambda name: (next(iter(scored.get(name, {}).values()), 2.0), name))
    rows = []
    for name in names:
        member = run.members.clients[name]
        trained = [record for record in run.history.rounds if name in record.loss]
        rows.append(
            (
                name,
                f"{member.labeled} / {member.unlabeled} / {member.test}",
                member.verdict or "-",
                f"{len(trained)}",
                _format(trained[-1].loss[name] if trained else None),
                *(_format(scored.get(name, {}).get(metric)) for metric in run.metrics),
            )
        )
    columns = ("lab", "labeled / all / test", "style", "rounds", "loss", *map(_head, run.metrics))
    return Table(LABS, "Images of each lab, the verdict on its style, and the rounds it trained in.", columns, rows)


def list_class_scores(run: RunState) -> Table:
    """Return the latest scores of each class, if there are more than two classes."""
    scored = find_scored(run.history)
    scores_by_class: dict[str, dict[str, float]] = {}
    for key, value in () if scored is None else scored.scores.items():
        metric, of, name = key.partition(OF)
        if of:
            scores_by_class.setdefault(name, {})[metric] = value
    metrics = list(dict.fromkeys(metric for scores in scores_by_class.values() for metric in scores))
    rows = [(name, *(_format(scores.get(metric)) for metric in metrics)) for name, scores in scores_by_class.items()]
    return Table("Classes", "Over the test images of all labs.", ("class", *map(_head, metrics)), rows)


def list_standing(run: RunState) -> Table:
    """Return how far each lab's updates agree with the others', and how often it was suspected; worst first."""
    ranked = []
    for name in sorted({name for record in run.history.rounds for name in record.standing}):
        rounds = [record for record in run.history.rounds if name in record.standing]
        named = [record for record in rounds if name in record.suspects]
        cosine = fmean(record.standing[name].cosine for record in rounds)
        longest = max(record.standing[name].length for record in rounds)
        why = named[-1].suspects[name] if named else "-"
        ranked.append(
            (-len(named), cosine, (name, f"{len(named)} of {len(rounds)}", f"{cosine:.2f}", f"{longest:.1f}", why))
        )
    text = (
        "Mean cosine of a lab's updates with the center of the others', and its longest update relative to the median."
    )
    columns = ("lab", "suspected in rounds", "cosine", "longest", "why, at last")
    return Table(AGREEMENT, text, columns, [row for _, _, row in sorted(ranked)])


def list_left_out(run: RunState) -> Table:
    """Return the labs that were left out, when, and why."""
    entries = [
        ("joining", str(event["client"]), str(event["reason"])) for event in run.events if event["kind"] == "left out"
    ]
    for record in run.history.rounds:
        for missing in (record.left_out, record.unscored):
            entries += [(f"round {record.number}", name, reason) for name, reason in missing.items()]
    rows = [(name, when, why) for when, name, why in entries]
    return Table("Left out", "Labs that were asked but not counted, and the reason.", ("lab", "when", "why"), rows)


def draw_run(run: RunState) -> Drawing:
    """Return the curves of scores and loss over all labs and, if there are few, of each lab."""
    panels = {_head(name): _score_curves(run, name) for name in run.metrics}
    panels[LOSS] = _loss_curves(run)
    return Drawing("Over the rounds", "Scores on test images, and the loss in training.", draw_curves(panels, "curves"))


def write_run_report(run: RunState) -> Path:
    """Write `report.html` into the folder of a run, and return its path."""
    path = run.folder / "report.html"
    drawn: list[Table | Drawing] = [draw_run(run)] if run.history.rounds else []
    write_report(path, "A federation", run.status, [*drawn, *list_tables(run)])
    return path


def list_tables(run: RunState) -> list[Table]:
    """Return all tables of a run that are not empty."""
    tables = (list_rounds, list_class_scores, list_labs, list_standing, list_left_out, list_damage)
    return [table for table in (make(run) for make in tables) if table.rows]


def _score_curves(run: RunState, metric: str) -> dict[str, Curve]:
    scored = [record for record in run.history.rounds if metric in record.scores]
    curves: dict[str, Curve] = {ALL: [(record.number, record.scores[metric]) for record in scored]}
    for name in _list_drawn(run.history.rounds):
        rounds = [record for record in scored if metric in record.each.get(name, {})]
        curves[name] = [(record.number, record.each[name][metric]) for record in rounds]
    return curves


def _loss_curves(run: RunState) -> dict[str, Curve]:
    rounds = run.history.rounds
    curves: dict[str, Curve] = {
        ALL: [(record.number, loss) for record in rounds if (loss := record.mean_loss) is not None]
    }
    for name in _list_drawn(rounds):
        curves[name] = [(record.number, record.loss[name]) for record in rounds if name in record.loss]
    return curves


def _list_drawn(rounds: Sequence[RoundRecord]) -> list[str]:
    names = sorted({name for record in rounds for name in (*record.loss, *record.each)})
    return names if len(names) <= MOST_CURVES - 1 else []


def _head(metric: str) -> str:
    return HEADS.get(metric, metric.upper())


def _find_typical(record: RoundRecord) -> float | None:
    """Return the first score of the median lab, such as its IOU."""
    first = next(iter(record.scores), None)
    values = [scores[first] for scores in record.each.values() if first in scores]
    return median(values) if values else None


def _format(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
