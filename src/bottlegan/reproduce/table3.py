"""Table 3: segmentation of nuclei by a federation of real hospitals, tested on theirs and on others' images.

A run is one row with one seed, which draws who has labels and the first weights, and one fold, which says who takes no
part. Runs are made, kept and gone on with as those of Table 1.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from pathlib import Path

from torch import Tensor

from bottlegan.core.config import load, to_json
from bottlegan.core.errors import InputError
from bottlegan.core.files import make_folder, write_text
from bottlegan.core.progress import Progress, Silent
from bottlegan.core.task import Task
from bottlegan.federated.client.staining import Stain, Staining, Styles
from bottlegan.federated.client.training import Lab, score_lab
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.server.members import read_members
from bottlegan.federated.server.rounds import State, score_clients
from bottlegan.imaging.files import Pixels
from bottlegan.metrics.tally import compute_scores
from bottlegan.models.document import PRIOR
from bottlegan.models.networks import NetworkConfig
from bottlegan.models.weights import ModelWeights, read_weights
from bottlegan.onboarding.fit import onboard
from bottlegan.onboarding.verdict import Verdict
from bottlegan.reproduce.federations import Federation, Which, arrange, federate, make_runs, obtain_styles
from bottlegan.reproduce.hospitals import FOLDS, Deal, Hospital, deal, draw_hospitals, read_hospitals
from bottlegan.reproduce.paired import Scale
from bottlegan.reproduce.table1_methods import FEDAVG, TrainingMethod, find_stain, plan_row
from bottlegan.reproduce.table2_files import find_commit
from bottlegan.reproduce.table3_files import Scores, Table3Run, to_csv, to_markdown
from bottlegan.reproduce.world import LabData
from bottlegan.training.task import TrainingConfig, lay_out

DRAWS = 3
TASK = Task(classes=("other", "nuclei"))
SCALES: dict[Scale, Phase2Config] = {
    "smoke": Phase2Config(
        rounds=2,
        task=TASK,
        network=NetworkConfig(arguments={"width": 4}),
        training=TrainingConfig(steps=1, batch=2, crop=32),
    ),
    "cpu": Phase2Config(rounds=60, task=TASK),
}
METHODS = (
    TrainingMethod("fedavgm", "FedAvgM"),
    TrainingMethod("torchstain", "FedAvgM + torchstain Macenko", baseline="torchstain"),
    TrainingMethod("reinhard", "FedAvgM + torchstain Reinhard", baseline="reinhard"),
    TrainingMethod("hed", "FedAvgM + HED jitter", baseline="hed"),
    TrainingMethod("randstainna", "FedAvgM + RandStainNA", baseline="randstainna"),
    TrainingMethod("bottlegan-normalize", "BottleGAN, normalize", mode="normalize"),
    TrainingMethod("bottlegan-restain", "BottleGAN, restain", mode="restain"),
    TrainingMethod("pooled", "pooled: all images in one place", strategy=FEDAVG, together="pooled"),
    TrainingMethod("local", "local only (labs with labels)", strategy=FEDAVG, together="local"),
)


@dataclass(frozen=True)
class Experiment:
    """A whole table: what it is made of, and where it is kept."""

    scale: Scale
    out: Path
    data: Path | None = None
    rows: tuple[str, ...] = ()
    """Keys of the rows to make; none for all."""
    draws: int = DRAWS
    """Seeds."""

    def __post_init__(self) -> None:
        """Check what can be checked at once."""
        known = [method.key for method in METHODS]
        unknown = [key for key in self.rows if key not in known]
        if unknown:
            raise InputError(f"table3 has no row {unknown[0]}; there are: {', '.join(known)}")
        if self.scale not in SCALES:
            raise InputError(f"table3 has no scale {self.scale}, as the paper has no such table; use smoke or cpu")
        if self.scale != "smoke" and self.data is None:
            raise InputError("no real labs: give the folder with their index.csv as --data, or use --scale smoke")

    @property
    def runs(self) -> Path:
        """The folder of finished runs."""
        return self.out / "table3-runs"

    def path(self, key: str, seed: int, fold: int) -> Path:
        """Return where a finished run is written."""
        return self.runs / f"{key}-seed{seed}-fold{fold}.json"

    def list_runs(self) -> list[Which]:
        """Return row, seed and fold of all runs, all rows of a deal one after the other."""
        draws, folds = (1, 1) if self.scale == "smoke" else (self.draws, FOLDS)
        keys = [each.key for each in METHODS if not self.rows or each.key in self.rows]
        return [(key, seed, fold) for seed in range(draws) for fold in range(folds) for key in keys]

    def write(self) -> Path:
        """Write the table of all finished runs as Markdown and CSV, and return the path of the former."""
        names = {method.key: method.name for method in METHODS}
        runs = [load(Table3Run, path) for path in self.runs.glob("*-seed*-fold*.json")]
        runs.sort(key=lambda run: (list(names).index(run.key), run.seed, run.fold))
        path = self.out / "table3.md"
        write_text(path.with_suffix(".csv"), to_csv(runs))
        write_text(path, to_markdown(runs, names, self.scale))
        return path


def run_table3(experiment: Experiment, jobs: int | None = None, progress: Progress | None = None) -> Path:
    """Make all runs that are not there yet, and write the table after each; return the table's path."""
    progress = progress or Silent()
    make_folder(experiment.runs)
    missing = [each for each in experiment.list_runs() if not experiment.path(*each).exists()]
    runs = make_runs(partial(make_run, experiment=experiment), missing, jobs)
    for run in progress.track(runs, "runs", len(missing)):
        progress.event("run", key=run.key, seed=run.seed, fold=run.fold, iou=run.left_out.iou)
        experiment.write()
    return experiment.write()


def make_run(which: Which, experiment: Experiment) -> Table3Run:
    """Train one row with one seed and fold, score it, and write it down."""
    key, seed, fold = which
    method = next(each for each in METHODS if each.key == key)
    dealt = deal(recall_hospitals(experiment.data if experiment.scale != "smoke" else None), seed, fold)
    styles = obtain_styles(dealt.members, seed, experiment.runs / f"styles-seed{seed}-fold{fold}.safetensors")
    path = experiment.path(*which)
    folder = path.with_suffix("")
    started = time.process_time()
    stain = find_stain(method, dealt.members, [choose_template(dealt)])
    config = plan_row(method, SCALES[experiment.scale])
    members, refused = split(dealt.members, None if method.mode == "plain" else styles)
    federations = arrange(method, config, members, stain, seed=seed, folder=folder)
    finished = [(each, federate(each, styles)) for each in federations]
    own = score_members(finished) | score_as_they_are(finished, [lab for lab in refused if lab.test])
    others = score_visitors(finished, dealt.visitors, stain)
    run = Table3Run(
        key=key,
        seed=seed,
        fold=fold,
        held_out=average(list(own.values())),
        left_out=average(list(others.values())),
        labs={**own, **others},
        labeled=tuple(lab.name for lab in dealt.members if lab.labeled),
        visitors=tuple(others),
        refused=tuple(lab.name for lab in refused),
        seconds=time.process_time() - started,
        commit=find_commit(),
    )
    write_text(path, to_json(run))
    shutil.rmtree(folder)
    return run


@lru_cache(maxsize=1)
def recall_hospitals(data: Path | None) -> list[Hospital]:
    """Return all labs, which all runs have in common."""
    return draw_hospitals() if data is None else read_hospitals(data)


def choose_template(dealt: Deal) -> Pixels:
    """Return the image that other packages are fitted to: the first of the first lab with labels, as people do it."""
    return next(lab for lab in dealt.members if lab.labeled).train[0]


def split(labs: Sequence[LabData], styles: ModelWeights | None) -> tuple[list[LabData], list[LabData]]:
    """Return the labs that have a style, all if none is needed, and those whose style was refused."""
    known = {lab.name for lab in labs} if styles is None else set(styles.document.styles)
    return [lab for lab in labs if lab.name in known], [lab for lab in labs if lab.name not in known]


def score_members(finished: Sequence[tuple[Federation, State]]) -> dict[str, Scores]:
    """Return the scores of each lab that takes part and has images that it did not train on."""
    scores: dict[str, Scores] = {}
    for each, state in finished:
        asked = dict.fromkeys(each.clients, 0)
        tallies = score_clients(
            each.exchange, asked, each.config, state.weights, state.finished, members=read_members(each.folder)
        )[0]
        scores |= {name: to_scores(total) for name, total in tallies.items()}
    return scores


def score_visitors(
    finished: Sequence[tuple[Federation, State]], visitors: Sequence[LabData], stain: Stain
) -> dict[str, Scores]:
    """Return the scores on each lab that took no part; where labs train alone, the mean over their networks.

    A visitor does what a member does before it predicts. In mode normalize that takes its style code, which it fits to
    its own images with the shipped prior, without labels.
    """
    config = finished[0][0].config.phase2
    styles = None if config.mode == "plain" else onboard_visitors(visitors)
    usable, refused = split(visitors, styles)
    known = None if styles is None else Styles(styles)
    opened = [Lab(lab.name, [], [], lab.test, stain(config, known, lab.name)) for lab in usable]
    return score_opened(finished, opened) | score_as_they_are(finished, refused)


def score_as_they_are(finished: Sequence[tuple[Federation, State]], labs: Sequence[LabData]) -> dict[str, Scores]:
    """Return the scores on labs whose style was refused: their images are not normalized."""
    return score_opened(finished, [Lab(lab.name, [], [], lab.test, Staining()) for lab in labs])


def score_opened(finished: Sequence[tuple[Federation, State]], labs: Sequence[Lab]) -> dict[str, Scores]:
    """Return the scores on labs, the mean over all networks."""
    config = finished[0][0].config.phase2
    return {
        lab.name: average([to_scores(score_lab(lab, each.weights, config)) for _, each in finished]) for lab in labs
    }


def onboard_visitors(visitors: Sequence[LabData]) -> ModelWeights:
    """Return the shipped prior with the styles of labs, each fitted to its own images, but for those refused."""
    prior = read_weights(PRIOR)
    fitted = {lab.name: onboard(lab.train, prior) for lab in visitors}
    usable = {name: each.code for name, each in fitted.items() if each.diagnosis.verdict is not Verdict.REFUSED}
    return prior.with_styles(usable)


def to_scores(total: Tensor) -> Scores:
    """Return what a lab's tally comes to."""
    return pick(compute_scores(total, lay_out(TASK), TASK.classes))


def pick(scores: Mapping[str, float]) -> Scores:
    """Return those scores that are in the table."""
    return Scores(**{each.name: scores[each.name] for each in fields(Scores)})


def average(scores: Sequence[Scores]) -> Scores:
    """Return the mean over labs, each of which counts the same however many images it has."""
    return pick({each.name: sum(getattr(one, each.name) for one in scores) / len(scores) for each in fields(Scores)})
