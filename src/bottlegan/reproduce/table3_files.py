"""Table 3 on disk: a file per run, and the table as Markdown and CSV."""

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from statistics import fmean

from bottlegan.core.config import document
from bottlegan.reproduce.intervals import format_difference, format_interval
from bottlegan.reproduce.runs import TableRun

BASE = "fedavgm"
"""The row with which all others are compared."""


@document
class Scores:
    """The metrics of Table 3."""

    iou: float
    dice: float
    ece: float
    nll: float


@document
class Table3Run(TableRun):
    """One row with one seed and one fold."""

    held_out: Scores
    """Mean over the labs that took part, on their test images."""
    left_out: Scores
    """Mean over the labs that were left out."""
    labs: dict[str, Scores]
    labeled: tuple[str, ...]
    visitors: tuple[str, ...]
    """Labs that took no part."""
    seconds: float
    """Processor time, scoring included."""
    commit: str
    refused: tuple[str, ...] = ()
    """Labs whose style was refused: they did not train, and were scored without normalization."""

    @property
    def headline(self) -> Scores:
        """The scores to report as soon as the run is finished."""
        return self.left_out


METRICS = tuple(metric.name for metric in fields(Scores))
COLUMNS = {"iou": "IOU", "dice": "Dice", "ece": "ECE", "nll": "NLL"}
COMPARED = ("iou", "ece", "nll")
KINDS = {"held_out": "Held-out images of labs that took part", "left_out": "Labs that took no part"}


def to_csv(runs: Sequence[Table3Run]) -> str:
    """Return one line per run and lab, with all digits."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["key", "seed", "fold", "lab", "took_part", "labeled", *METRICS])
    for run in runs:
        for lab, scores in run.labs.items():
            flags = [lab not in run.visitors, lab in run.labeled]
            writer.writerow(
                [run.key, run.seed, run.fold, lab, *flags, *(getattr(scores, metric) for metric in METRICS)]
            )
    return buffer.getvalue()


def to_markdown(runs: Sequence[Table3Run], names: Mapping[str, str], scale: str) -> str:
    """Return both tables, and which labs took part in which fold."""
    commits = ", ".join(dict.fromkeys(run.commit for run in runs))
    lines = [f"`bottlegan reproduce table3 --scale {scale} --data DIR --out DIR`, commit {commits}, one core a run."]
    for kind, title in KINDS.items():
        lines += ["", f"## {title}", "", *_table(runs, names, kind)]
    lines += ["", "## Who took no part", "", *_list_deals(runs), "", *_LEGEND]
    return "\n".join(lines) + "\n"


_LEGEND = (
    "Mean over labs, with equal weights, of each lab's mean over its runs (seeds and folds), ± half of the 95 %",
    "interval over labs (Student's t). Against FedAvgM: the mean difference on the same",
    "labs, seeds and folds, with its interval. IOU and Dice of nuclei, ECE (40 bins) and NLL over pixels. Local:",
    "each lab with labels trains alone and is scored on its own held-out images; labs that took no part are scored",
    "with all of these networks, and the mean is given. Refused: the prior did not recognize the lab's training",
    "images as H&E, so BottleGAN's rows do not train on them.",
)


Places = dict[tuple[int, int, str], Scores]
"""Scores by seed, fold and lab."""


def _table(runs: Sequence[Table3Run], names: Mapping[str, str], kind: str) -> list[str]:
    columns = [*COLUMNS.values(), *(f"{COLUMNS[metric]} against FedAvgM" for metric in COMPARED)]
    lines = [f"| method | runs | labs | {' | '.join(columns)} | seconds |", "| --- " * (len(columns) + 4) + "|"]
    base = _gather(runs, BASE, kind)
    for key, name in names.items():
        own = _gather(runs, key, kind)
        if not own:
            continue
        cells = [format_interval(_over_labs(own, metric)) for metric in METRICS]
        common = {place: scores for place, scores in own.items() if place in base and key != BASE}
        for metric in COMPARED:
            pairs = list(zip(_over_labs(common, metric), _over_labs(base, metric, common), strict=True))
            cells.append(format_difference(pairs) if pairs else "-")
        same = [run for run in runs if run.key == key]
        labs = len({lab for _, _, lab in own})
        lines.append(
            f"| {name} | {len(same)} | {labs} | {' | '.join(cells)} | {fmean(run.seconds for run in same):.0f} |"
        )
    return lines


def _gather(runs: Sequence[Table3Run], key: str, kind: str) -> Places:
    """Return a row's scores on the labs that took part, or on those left out."""
    return {
        (run.seed, run.fold, lab): scores
        for run in runs
        if run.key == key
        for lab, scores in run.labs.items()
        if (lab in run.visitors) == (kind == "left_out")
    }


def _over_labs(scores: Places, metric: str, places: Collection[tuple[int, int, str]] | None = None) -> list[float]:
    """Return each lab's mean of a metric over `places`, by default all, in the order of the labs."""
    chosen = [place for place in scores if places is None or place in places]
    labs = sorted({lab for _, _, lab in chosen})
    return [fmean(getattr(scores[place], metric) for place in chosen if place[2] == lab) for lab in labs]


def _list_deals(runs: Sequence[Table3Run]) -> list[str]:
    lines = ["| seed | fold | took no part | took part with labels | of all that took part, refused |"]
    lines.append("| --- " * 5 + "|")
    deals: dict[tuple[int, int], list[Table3Run]] = {}
    for run in runs:
        deals.setdefault((run.seed, run.fold), []).append(run)
    for (seed, fold), same in sorted(deals.items()):
        refused = ", ".join(sorted({name for run in same for name in run.refused})) or "-"
        lines.append(f"| {seed} | {fold} | {', '.join(same[0].visitors)} | {', '.join(same[0].labeled)} | {refused} |")
    return lines
