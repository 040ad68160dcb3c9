"""Figure 3: IOU, ECE and NLL over the rounds, from the runs of Table 1."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from bottlegan.core.files import write_text
from bottlegan.core.progress import Progress
from bottlegan.quality.curves import Curve, draw_curves
from bottlegan.reproduce.runs import run_table
from bottlegan.reproduce.table1 import Table1
from bottlegan.reproduce.table1_files import COLUMNS, METRICS, Table1Run
from bottlegan.reproduce.table1_methods import METHODS

SHOWN = (
    "fedavgm",
    "fedavgm-fixmatch",
    "bottlegan-normalize",
    "bottlegan-fixmatch",
    "bottlegan-restain",
    "bottlegan-restain-fixmatch",
    "oracle",
)


def run_figure3(experiment: Table1, jobs: int | None = None, progress: Progress | None = None) -> Path:
    """Make the missing runs of Table 1, and draw its curves beside it."""
    run_table(experiment, jobs, progress)
    return write_figure(experiment.read(Table1Run), experiment.out)


def write_figure(runs: Sequence[Table1Run], out: Path) -> Path:
    """Draw the mean curves of all finished rows of the figure as `figure3.svg`."""
    made = {run.key for run in runs}
    names = {method.key: method.name for method in METHODS if method.key in SHOWN and method.key in made}
    panels = {
        title: {name: mean_curve([run for run in runs if run.key == key], metric) for key, name in names.items()}
        for title, metric in zip(COLUMNS, METRICS, strict=True)
    }
    path = out / "figure3.svg"
    drawn = str(draw_curves(panels, "IOU, ECE and NLL over the rounds"))
    # Inside a page an <svg> needs no namespace, but in its own file it does.
    write_text(path, drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n")
    return path


def mean_curve(runs: Sequence[Table1Run], metric: str) -> Curve:
    """Return the mean over runs at each scored round."""
    values_by_round: dict[int, list[float]] = {}
    for run in runs:
        for point in run.curve:
            values_by_round.setdefault(point.round, []).append(getattr(point.scores, metric))
    return [(number, fmean(values)) for number, values in sorted(values_by_round.items())]
