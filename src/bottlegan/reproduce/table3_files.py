"""Table 3 on disk: a file for each run, and what they come to as Markdown and CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from statistics import fmean

from bottlegan.core.config import document
from bottlegan.reproduce.intervals import format_difference, format_interval

BASE = "fedavgm"
"""The row that all others are compared with."""


@document
class Scores:
    """The metrics of Table 3."""

    iou: float
    dice: float
    ece: float
    nll: float


@document
class Run:
    """One row with one seed and one fold."""

    key: str
    seed: int
    fold: int
    held_out: Scores
    """Mean over the labs that took part, on images that nobody trained on."""
    left_out: Scores
    """Mean over the labs that took no part."""
    labs: dict[str, Scores]
    labeled: tuple[str, ...]
    visitors: tuple[str, ...]
    """Labs that took no part."""
    seconds: float
    """Of the processor, scoring included."""
    commit: str
    refused: tuple[str, ...] = ()
    """Labs whose style was refused, so that they trained in no round and were scored as they are."""


METRICS = tuple(each.name for each in fields(Scores))
COLUMNS = {"iou": "IOU", "dice": "Dice", "ece": "ECE", "nll": "NLL"}
COMPARED = ("iou", "ece", "nll")
KINDS = {"held_out": "Held-out images of labs that took part", "left_out": "Labs that took no part"}


def to_csv(runs: Sequence[Run]) -> str:
    """Return one line a run and lab, numbers in full."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["key", "seed", "fold", "lab", "took_part", "labeled", *METRICS])
    for run in runs:
        for lab, scores in run.labs.items():
            told = [lab not in run.visitors, lab in run.labeled]
            writer.writerow([run.key, run.seed, run.fold, lab, *told, *(getattr(scores, each) for each in METRICS)])
    return buffer.getvalue()


def to_markdown(runs: Sequence[Run], names: Mapping[str, str], scale: str) -> str:
    """Return both tables, and who took part in which fold."""
    commits = ", ".join(dict.fromkeys(run.commit for run in runs))
    lines = [f"`bottlegan reproduce table3 --scale {scale} --data DIR --out DIR`, commit {commits}, one core a run."]
    for kind, title in KINDS.items():
        lines += ["", f"## {title}", "", *_table(runs, names, kind)]
    lines += ["", "## Who took no part", "", *_list_deals(runs), "", *_LEGEND]
    return "\n".join(lines) + "\n"


_LEGEND = (
    "Mean over runs (seeds and folds) of the mean over labs, ± half of its 95 % interval (Student's t; runs share",
    "labs, so it is somewhat too narrow). Against FedAvgM: the mean difference over the same seeds and folds, with its",
    "interval. IOU and Dice of nuclei, ECE (40 bins) and NLL over pixels. Local: each lab with labels trains alone and",
    "is scored on its own held-out images; on labs that took no part, the mean over all of these networks. Refused:",
    "the prior took the lab's training images for something other than H&E, so BottleGAN's rows do not train on them.",
)


def _table(runs: Sequence[Run], names: Mapping[str, str], kind: str) -> list[str]:
    columns = [*COLUMNS.values(), *(f"{COLUMNS[metric]} against FedAvgM" for metric in COMPARED)]
    lines = [f"| method | runs | {' | '.join(columns)} | seconds |", "| --- " * (len(columns) + 3) + "|"]
    base = {(run.seed, run.fold): getattr(run, kind) for run in runs if run.key == BASE}
    for key, name in names.items():
        own = {(run.seed, run.fold): getattr(run, kind) for run in runs if run.key == key}
        if not own:
            continue
        cells = [format_interval([getattr(scores, metric) for scores in own.values()]) for metric in METRICS]
        common = [place for place in own if place in base and key != BASE]
        for metric in COMPARED:
            pairs = [(getattr(own[place], metric), getattr(base[place], metric)) for place in common]
            cells.append(format_difference(pairs) if pairs else "-")
        seconds = fmean(run.seconds for run in runs if run.key == key)
        lines.append(f"| {name} | {len(own)} | {' | '.join(cells)} | {seconds:.0f} |")
    return lines


def _list_deals(runs: Sequence[Run]) -> list[str]:
    lines = ["| seed | fold | took no part | took part with labels | of all that took part, refused |"]
    lines.append("| --- " * 5 + "|")
    deals: dict[tuple[int, int], list[Run]] = {}
    for run in runs:
        deals.setdefault((run.seed, run.fold), []).append(run)
    for (seed, fold), same in sorted(deals.items()):
        refused = ", ".join(sorted({name for run in same for name in run.refused})) or "-"
        lines.append(f"| {seed} | {fold} | {', '.join(same[0].visitors)} | {', '.join(same[0].labeled)} | {refused} |")
    return lines
