"""Table 3: segmentation of nuclei by a federation of real hospitals, tested on their own and on others' images.

A run is one row with one seed, which draws the labs with labels and the initial weights, and one fold, which leaves
some labs out.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from bottlegan.core.config import to_json
from bottlegan.core.errors import InputError
from bottlegan.core.files import write_text
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
from bottlegan.reproduce.federations import Federation, arrange, federate, obtain_styles
from bottlegan.reproduce.hospitals import FOLDS, Deal, Hospital, deal, draw_hospitals, read_hospitals
from bottlegan.reproduce.paired import Scale
from bottlegan.reproduce.runs import Experiment, Which, pick_scores
from bottlegan.reproduce.table1_methods import FEDAVG, TrainingMethod, find_stain, plan_row
from bottlegan.reproduce.table2_files import find_commit
from bottlegan.reproduce.table3_files import METRICS, Scores, Table3Run, to_csv, to_markdown
from bottlegan.reproduce.world import LabData
from bottlegan.training.task import TrainingConfig, lay_out

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
class Table3(Experiment):
    """Table 3."""

    def __post_init__(self) -> None:
        """Check rows, scale and data."""
        super().__post_init__()
        if self.scale not in SCALES:
            raise InputError(f"table3 has no scale {self.scale}, because the paper has no such table; use smoke or cpu")
        if self.scale != "smoke" and self.data is None:
            raise InputError("no real labs: give the folder with their index.csv as --data, or use --scale smoke")

    @property
    def methods(self) -> tuple[TrainingMethod, ...]:
        """All rows of the table."""
        return METHODS

    @property
    def name(self) -> str:
        """Name of the table's files."""
        return "table3"

    def list_runs(self) -> list[Which]:
        """Return all runs, with all rows of one seed and fold in sequence."""
        draws, folds = (1, 1) if self.scale == "smoke" else (self.draws, FOLDS)
        keys = [method.key for method in METHODS if not self.rows or method.key in self.rows]
        return [(key, seed, fold) for seed in range(draws) for fold in range(folds) for key in keys]

    def make(self, which: Which) -> Table3Run:
        """Make one run, and write it to its file."""
        return make_run(which, self)

    def write(self) -> Path:
        """Write the table of all finished runs as Markdown and CSV, and return the path of the former."""
        names = {method.key: method.name for method in METHODS}
        runs, path = self.read(Table3Run), self.out / "table3.md"
        write_text(path.with_suffix(".csv"), to_csv(runs))
        write_text(path, to_markdown(runs, names, self.scale))
        return path


def make_run(which: Which, experiment: Table3) -> Table3Run:
    """Train one row with one seed and fold, score it, and write its file."""
    key, seed, fold = which
    method = next(method for method in METHODS if method.key == key)
    dealt = deal(recall_hospitals(experiment.data if experiment.scale != "smoke" else None), seed, fold)
    styles = obtain_styles(dealt.members, seed, experiment.runs / f"styles-seed{seed}-fold{fold}.safetensors")
    path = experiment.path(*which)
    folder = path.with_suffix("")
    started = time.process_time()
    stain = find_stain(method, dealt.members, [choose_template(dealt)])
    config = plan_row(method, SCALES[experiment.scale])
    members, refused = split(dealt.members, None if method.mode == "plain" else styles)
    federations = arrange(method, config, members, stain, seed=seed, folder=folder)
    finished = [(federation, federate(federation, styles)) for federation in federations]
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
    """Return all labs, cached because all runs share them."""
    return draw_hospitals() if data is None else read_hospitals(data)


def choose_template(dealt: Deal) -> Pixels:
    """Return the image that other packages are fitted to: the first image of the first lab with labels."""
    return next(lab for lab in dealt.members if lab.labeled).train[0]


def split(labs: Sequence[LabData], styles: ModelWeights | None) -> tuple[list[LabData], list[LabData]]:
    """Return the labs with a style (all labs if no styles are needed), and those whose style was refused."""
    names = {lab.name for lab in labs} if styles is None else set(styles.document.styles)
    return [lab for lab in labs if lab.name in names], [lab for lab in labs if lab.name not in names]


def score_members(finished: Sequence[tuple[Federation, State]]) -> dict[str, Scores]:
    """Return the scores of each lab that takes part and has test images."""
    scores: dict[str, Scores] = {}
    for federation, state in finished:
        asked = dict.fromkeys(federation.clients, 0)
        tallies = score_clients(
            federation.exchange,
            asked,
            federation.config,
            state.weights,
            state.finished,
            members=read_members(federation.folder),
        )[0]
        scores |= {name: to_scores(total) for name, total in tallies.items()}
    return scores


def score_visitors(
    finished: Sequence[tuple[Federation, State]], visitors: Sequence[LabData], stain: Stain
) -> dict[str, Scores]:
    """Return the scores on each lab that was left out; if labs train alone, the mean over their networks.

    Before predicting, a visitor does the same as a member. In mode normalize it needs a style code, which it fits to
    its own images with the shipped prior, without labels.
    """
    config = finished[0][0].config.phase2
    styles = None if config.mode == "plain" else onboard_visitors(visitors)
    usable, refused = split(visitors, styles)
    prior_styles = None if styles is None else Styles(styles)
    opened = [Lab(lab.name, [], [], lab.test, stain(config, prior_styles, lab.name)) for lab in usable]
    return score_opened(finished, opened) | score_as_they_are(finished, refused)


def score_as_they_are(finished: Sequence[tuple[Federation, State]], labs: Sequence[LabData]) -> dict[str, Scores]:
    """Return the scores on labs whose style was refused, without normalizing their images."""
    return score_opened(finished, [Lab(lab.name, [], [], lab.test, Staining()) for lab in labs])


def score_opened(finished: Sequence[tuple[Federation, State]], labs: Sequence[Lab]) -> dict[str, Scores]:
    """Return the scores on labs, averaged over all networks."""
    config = finished[0][0].config.phase2
    return {
        lab.name: average([to_scores(score_lab(lab, state.weights, config)) for _, state in finished]) for lab in labs
    }


def onboard_visitors(visitors: Sequence[LabData]) -> ModelWeights:
    """Return the shipped prior with the labs' styles, each fitted to the lab's own images, except refused ones."""
    prior = read_weights(PRIOR)
    fitted = {lab.name: onboard(lab.train, prior) for lab in visitors}
    usable = {name: result.code for name, result in fitted.items() if result.diagnosis.verdict is not Verdict.REFUSED}
    return prior.with_styles(usable)


def to_scores(total: Tensor) -> Scores:
    """Return the scores of a lab's tally."""
    return pick_scores(Scores, compute_scores(total, lay_out(TASK), TASK.classes))


def average(scores: Sequence[Scores]) -> Scores:
    """Return the mean over labs, all with the same weight."""
    means = {metric: sum(getattr(one, metric) for one in scores) / len(scores) for metric in METRICS}
    return pick_scores(Scores, means)
