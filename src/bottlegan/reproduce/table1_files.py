"""Table 1 on disk: a file per run, and the table as Markdown and CSV."""

import csv
import io
from collections.abc import Sequence
from statistics import fmean

from bottlegan.core.config import document
from bottlegan.reproduce.intervals import format_interval
from bottlegan.reproduce.pseudo_labels import PseudoLabels
from bottlegan.reproduce.runs import TableRun
from bottlegan.reproduce.table1_methods import TrainingMethod


@document
class Scores:
    """The three metrics of Table 1."""

    iou: float
    ece: float
    nll: float


@document
class Point:
    """The scores after one round."""

    round: int
    scores: Scores


@document
class Table1Run(TableRun):
    """One row with one seed and one fold."""

    rounds: int
    scores: Scores
    """On all labs' test patches, after the last round."""
    unlabeled: Scores | None = None
    """On the test patches of labs without labels."""
    temperature: float | None = None
    """Fitted to the server's validation patches."""
    calibrated: Scores | None = None
    """The scores with that temperature; the IOU is the same."""
    curve: tuple[Point, ...] = ()
    pseudo_labels: tuple[PseudoLabels, ...] = ()
    """Scores of FixMatch's pseudo-labels over the rounds."""
    seconds: float = 0.0
    """Processor time of phase 2 on one core."""
    phase1_seconds: float = 0.0
    bytes_up: int = 0
    """Total upload of a lab that trains in every round."""
    commit: str = ""

    @property
    def headline(self) -> Scores:
        """The scores to report as soon as the run is finished."""
        return self.scores


METRICS = ("iou", "ece", "nll")
COLUMNS = ("IOU", "ECE", "NLL")


def to_csv(runs: Sequence[Table1Run]) -> str:
    """Return one line per run, with all digits."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    own = ["key", "seed", "fold", "rounds", "seconds", "phase1_seconds", "bytes_up", "temperature", "commit"]
    kinds = ("scores", "calibrated", "unlabeled")
    writer.writerow([*own, *(f"{kind}_{metric}" for kind in kinds for metric in METRICS)])
    for run in runs:
        scores = [getattr(getattr(run, kind), metric, "") for kind in kinds for metric in METRICS]
        writer.writerow([*(getattr(run, name) for name in own), *scores])
    return buffer.getvalue()


def to_markdown(runs: Sequence[Table1Run], methods: Sequence[TrainingMethod], command: str) -> str:
    """Return the tables: all rows on the first fold, the paper's rows on all folds, pseudo-labels and ratios."""
    commits = ", ".join(dict.fromkeys(run.commit for run in runs))
    lines = [f"`{command} --out DIR`, commit {commits}, one core a run.", "", "## All rows, first fold", ""]
    lines += _table([run for run in runs if run.fold == 0], methods)
    if any(run.fold for run in runs):
        paper = [method for method in methods if method.paper]
        lines += ["", "## The paper's rows, all folds", "", *_table(runs, paper)]
    pseudo = _list_pseudo_labels(runs, methods)
    lines += ["", "## Pseudo-labels of FixMatch over the rounds", "", *pseudo] * bool(pseudo)
    ratios = _ratios(runs, methods)
    lines += ["", "## Ratios", "", *ratios] * bool(ratios) + ["", *_LEGEND]
    return "\n".join(lines) + "\n"


_LEGEND = (
    "Mean over runs (seeds and folds) ± half of its 95 % interval (Student's t; runs of one seed share their styles).",
    "IOU of the epithelium, ECE (40 bins) and NLL over all pixels of all labs' test patches, each lab's in its own",
    "stain. Calibrated: with a temperature that the server has found on its own validation patches, which are in the",
    "reference stain. No labels: over labs that contributed no labels. MB up: what a lab that trains in every round",
    "uploads in all. Local only: each lab with labels trains and is tested alone, so its scores are theirs only.",
    "Pooled: not federated, as many steps in all. Seconds: of processor time, on one core, scoring included.",
)


def _table(runs: Sequence[Table1Run], methods: Sequence[TrainingMethod]) -> list[str]:
    columns = "IOU | ECE | NLL | ECE calibrated | NLL calibrated | IOU, no labels | MB up | seconds"
    lines = [f"| method | runs | {columns} |", "| --- " * 10 + "|"]
    for method in methods:
        own = [run for run in runs if run.key == method.key]
        if not own:
            continue
        cells = [format_interval([getattr(run.scores, metric) for run in own]) for metric in METRICS]
        calibrated = [run.calibrated for run in own if run.calibrated is not None]
        cells += [format_interval([getattr(scores, metric) for scores in calibrated]) for metric in METRICS[1:]]
        cells.append(format_interval([run.unlabeled.iou for run in own if run.unlabeled is not None]))
        cells.append(f"{own[0].bytes_up / 1e6:.1f}")
        lines.append(f"| {method.name} | {len(own)} | {' | '.join(cells)} | {fmean(run.seconds for run in own):.0f} |")
    return lines


def _list_pseudo_labels(runs: Sequence[Table1Run], methods: Sequence[TrainingMethod]) -> list[str]:
    """Return one line per row with FixMatch and scored round: means over its runs."""
    lines = ["| method | round | sure | of these right | epithelium: precision | recall |", "| --- " * 6 + "|"]
    for method in methods:
        points = [point for run in runs if run.key == method.key for point in run.pseudo_labels]
        for number in sorted({point.round for point in points}):
            here = [point for point in points if point.round == number]
            parts = [[getattr(point, part) for point in here] for part in ("sure", "right", "precision", "recall")]
            lines.append(f"| {method.name} | {number} | {' | '.join(format_interval(part) for part in parts)} |")
    return lines if len(lines) > 2 else []


def _ratios(runs: Sequence[Table1Run], methods: Sequence[TrainingMethod]) -> list[str]:
    """Return BottleGAN's ratios to the oracle and to FedAvgM, over the seeds and folds that all of them have."""
    columns = "IOU / oracle | gap closed | IOU no labels / oracle | ECE / FedAvgM | NLL / FedAvgM"
    lines = [f"| BottleGAN | runs | {columns} | ECE, both calibrated | NLL, both calibrated |", "| --- " * 9 + "|"]
    for method in methods:
        if method.mode == "plain":
            continue
        common = _common(runs, (method.key, "oracle", "fedavgm"))
        if not common:
            continue
        ours, oracle, plain = ([together[i] for together in common] for i in range(3))
        iou = [fmean(run.scores.iou for run in group) for group in (ours, oracle, plain)]
        gap = (iou[0] - iou[2]) / (iou[1] - iou[2]) if iou[1] != iou[2] else float("nan")
        ratios = [iou[0] / iou[1], gap, _ratio(ours, oracle, "unlabeled", "iou")]
        ratios += [_ratio(ours, plain, kind, metric) for kind in ("scores", "calibrated") for metric in METRICS[1:]]
        lines.append(f"| {method.name} | {len(common)} | {' | '.join(f'{ratio:.3f}' for ratio in ratios)} |")
    return lines if len(lines) > 2 else []


def _common(runs: Sequence[Table1Run], keys: tuple[str, ...]) -> list[list[Table1Run]]:
    """Return the runs of these rows, grouped by the seeds and folds that all rows have."""
    by_place = {(run.key, run.seed, run.fold): run for run in runs}
    places = sorted({(run.seed, run.fold) for run in runs})
    complete = [place for place in places if all((key, *place) in by_place for key in keys)]
    return [[by_place[key, *place] for key in keys] for place in complete]


def _ratio(ours: Sequence[Table1Run], others: Sequence[Table1Run], kind: str, metric: str) -> float:
    """Return the ratio of two rows' means of a metric; NaN if one of them has none."""
    means = []
    for runs in (ours, others):
        values = [getattr(scores, metric) for run in runs if (scores := getattr(run, kind)) is not None]
        means.append(fmean(values) if values else float("nan"))
    return means[0] / means[1]
