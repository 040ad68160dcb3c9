"""The paper's phase 1, scored: the error of each lab's own GAN, and of the global model that the server distills.

The labs are those of Table 1. An interrupted run is resumed, even in the middle of a lab's training.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import torch
from torch import Tensor

from bottlegan.core.config import document
from bottlegan.core.files import write_text
from bottlegan.core.progress import Progress, Silent
from bottlegan.federated.client.client import Client
from bottlegan.federated.client.holdings import hold
from bottlegan.federated.protocol.exchange import LocalExchange, Reply, Request
from bottlegan.federated.protocol.phase1 import Phase1Config, Phase1Method, from_arrays
from bottlegan.federated.server.config import FederationConfig, RoundsConfig
from bottlegan.federated.server.federation import keep_config
from bottlegan.federated.server.folder import STYLES, UPLOADS
from bottlegan.federated.server.phase1 import run_phase1
from bottlegan.federated.server.uploads import UploadStore
from bottlegan.imaging.tensors import to_batch
from bottlegan.models.files import load_model
from bottlegan.models.paradigms import StyleModel
from bottlegan.reproduce.paired import Scale
from bottlegan.reproduce.table2_files import find_commit
from bottlegan.reproduce.world import LabData, StyleSet, World, draw_world
from bottlegan.training.adversarial import AdversarialConfig

SECONDS = "seconds.json"
TINY = 2
"""Steps at the scale `smoke`."""


@document
class Errors:
    """Mean squared errors on one lab's test patches."""

    nothing: float
    """Of unchanged patches."""
    own_normalize: float | None = None
    own_restain: float | None = None
    """Of the lab's own model, if it trained one."""
    normalize: float
    restain: float
    """Of the server's global model."""


@dataclass(frozen=True)
class Trial:
    """A trial's settings and folder."""

    scale: Scale
    styles: StyleSet
    method: Phase1Method
    labs: int
    out: Path
    data: Path | None = None
    seed: int = 0

    @property
    def config(self) -> FederationConfig:
        """The settings of a federation that runs only phase 1."""
        few = TINY if self.scale == "smoke" else 0
        critics = AdversarialConfig(preset="paper" if self.scale == "paper" else "cpu", steps=few, server_steps=few)
        phase1 = Phase1Config(method=self.method, adversarial=critics)
        return FederationConfig(seed=self.seed, phase1=phase1, rounds=RoundsConfig(least=1))


def run_trial(trial: Trial, progress: Progress | None = None) -> Path:
    """Run or resume phase 1, score it, and return the path of the page."""
    progress = progress or Silent()
    folder = trial.out / f"phase1-{trial.method}-{trial.styles}"
    keep_config(folder, trial.config)
    world = draw_world(trial.scale, trial.styles, trial.data, trial.seed, 0)
    labs, reference_set = world.labs("own")[: trial.labs], world.reference_set()
    clients = {lab.name: Client(hold(lab.train, [], [], reference_set), folder / "labs" / lab.name) for lab in labs}
    answers = {name: timed(client.answer, folder / SECONDS, name) for name, client in clients.items()}
    started = time.process_time()
    run_phase1(LocalExchange(answers), trial.config, folder, reference_set=reference_set, progress=progress)
    spent = time.process_time() - started
    errors = score_labs(folder, trial.config.phase1, labs, world)
    path = trial.out / f"{folder.name}.md"
    write_text(path, to_markdown(trial, errors, json.loads((folder / SECONDS).read_text()), spent))
    return path


def timed(answer: Callable[[Request], Reply], path: Path, name: str) -> Callable[[Request], Reply]:
    """Return the same function, which also adds up the processor seconds for the lab's style in a file."""

    def answer_timed(request: Request) -> Reply:
        started = time.process_time()
        try:
            return answer(request)
        finally:
            if request.kind == "contribute":
                seconds = json.loads(path.read_text()) if path.exists() else {}
                seconds[name] = seconds.get(name, 0.0) + time.process_time() - started
                write_text(path, json.dumps(seconds))

    return answer_timed


def score_labs(folder: Path, config: Phase1Config, labs: Sequence[LabData], world: World) -> dict[str, Errors]:
    """Return the errors of each lab. The truth is the same tissue in the reference stain, which nobody trained on."""
    model, uploads = load_model(folder / STYLES), UploadStore(folder / UPLOADS).read_all()
    truths = {lab.name: [to_batch(sample.image) for sample in lab.test] for lab in world.labs("reference")}
    errors = {}
    for lab in labs:
        pairs = [(to_batch(sample.image), truth) for sample, truth in zip(lab.test, truths[lab.name], strict=True)]
        own = None if config.method == "code" else from_arrays(uploads[lab.name], config)
        alone = (None, None) if own is None else measure(own, own.codes.table[0], pairs)
        normalize, restain = measure(model, model.codes[lab.name], pairs)
        errors[lab.name] = Errors(
            nothing=fmean((x - c).square().mean().item() for x, c in pairs),
            own_normalize=alone[0],
            own_restain=alone[1],
            normalize=normalize,
            restain=restain,
        )
    return errors


@torch.no_grad()
def measure(model: StyleModel, code: Tensor, pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Return the mean squared errors of normalizing and restaining, over pairs of a styled patch and the truth."""
    there = [(model.normalize(x, code) - c).square().mean().item() for x, c in pairs]
    back = [(model.restain(c, code) - x).square().mean().item() for x, c in pairs]
    return fmean(there), fmean(back)


def to_markdown(trial: Trial, errors: dict[str, Errors], seconds: dict[str, float], spent: float) -> str:
    """Return the page: one line per lab, then mean and median."""
    command = f"bottlegan reproduce phase1 --scale {trial.scale} --styles {trial.styles} --method {trial.method}"
    columns = ["nothing", "own_normalize", "own_restain", "normalize", "restain"]
    values = {name: [getattr(lab_errors, column) for column in columns] for name, lab_errors in errors.items()}
    rows = {name: [*numbers, seconds.get(name)] for name, numbers in values.items()}
    summary = list(zip(*rows.values(), strict=True))
    for title, over in (("mean", fmean), ("median", median)):
        rows[title] = [over(column) if None not in column else None for column in summary]
    titles = "nothing | lab's own: normalize | restain | server's: normalize | restain | processor seconds of the lab"
    lines = [
        f"`{command} --labs {len(errors)} --seed {trial.seed} --out DIR`, commit {find_commit()}, one core.",
        "",
        f"| lab | {titles} |",
        "| --- " * 7 + "|",
    ]
    for name, numbers in rows.items():
        cells = ["-" if number is None else f"{number:.5f}" for number in numbers[:-1]]
        cells.append("-" if numbers[-1] is None else f"{numbers[-1]:.0f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "Mean squared errors on patches that nobody trained on, RGB in [0, 1]."]
    lines += [f"This call took {spent:.0f} seconds of one core, labs and server together."]
    return "\n".join(lines) + "\n"
