"""The demo: the whole method on procedural tissue, in minutes and without any data.

Several labs stain tissue each in its own way. In phase 1 each fits its style code, and all codes make one BottleGAN;
in phase 2 the labs train one segmentation network, with and without it. Nobody shares a pixel.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from bottlegan.config import document, to_values
from bottlegan.errors import ConfigError
from bottlegan.experiments.demo_report import write_demo
from bottlegan.experiments.demo_rounds import train_together
from bottlegan.federated.phase1 import Phase1Config, assemble, contribute
from bottlegan.files import make_folder, write_text
from bottlegan.imaging.tensors import from_batch, from_levels, to_levels
from bottlegan.metrics.fid import frechet_distance
from bottlegan.metrics.image import compare_images
from bottlegan.models.document import PRIOR
from bottlegan.models.files import save_model
from bottlegan.models.paradigms import BottleGAN
from bottlegan.progress import Json, Progress, Silent
from bottlegan.seeding import numpy_stream, torch_stream
from bottlegan.simulation.tissue import Tissue, draw_tissue
from bottlegan.stain.simulate import render
from bottlegan.stain.style import LABS, PAPER, REFERENCE, Style, draw_style


@document
class DemoConfig:
    """How large the demo is."""

    labs: int = 6
    patches: int = 4
    """Patches of each lab; the last one is tested on, the others are trained on."""
    reference: int = 16
    """Patches in the reference set."""
    size: int = 448
    """Side of a patch in pixels."""
    rounds: int = 50
    """Rounds of phase 2."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Check that there is something to show."""
        if self.labs < 2 or self.patches < 2 or self.reference < 2 or self.rounds < 1:
            raise ConfigError("a demo needs at least 2 labs, 2 patches of each, 2 reference patches and 1 round")


@dataclass(frozen=True)
class DemoLab:
    """What one lab has, what became of it, and the truth that only a simulation knows."""

    style: Style
    images: Tensor
    """(N, 3, H, W) in the lab's style."""
    truth: Tensor
    """(N, 3, H, W): the same tissue in the reference stain."""
    epithelium: Tensor
    """(N, H, W) bool."""
    normalized: Tensor
    restained: Tensor
    """The truth, brought to the lab's style."""
    verdict: str


def run_demo(config: DemoConfig, out: Path, progress: Progress | None = None) -> Path:
    """Run the demo, write `report.html`, `labs.jpg`, `metrics.json` and the model into `out`; return the report."""
    progress = progress or Silent()
    make_folder(out)
    tissue = draw_all(config, progress)
    reference_set = _scan(render(_concentrations(tissue[: config.reference]), REFERENCE))
    held = [tissue[start : start + config.patches] for start in range(config.reference, len(tissue), config.patches)]
    labs, model = learn_styles(config, held, progress)
    save_model(model, out / "styles.safetensors", {"seed": config.seed}, REFERENCE)
    outcomes = train_together(labs, model, config.rounds, config.seed, progress)
    scores = {lab.style.name: score_lab(lab) for lab in progress.track(labs, "scoring labs", len(labs))}
    metrics: dict[str, Json] = {
        "config": to_values(config),
        "mean": {key: sum(each[key] for each in scores.values()) / len(scores) for key in scores[labs[0].style.name]},
        "fid": score_sets(labs, reference_set),
        "labs": {lab.style.name: {**scores[lab.style.name], "verdict": lab.verdict} for lab in labs},
        "segmentation": {outcome.key: dict(outcome.scores) for outcome in outcomes},
    }
    progress.event("demo", **metrics)
    write_text(out / "metrics.json", json.dumps(metrics, indent=2, allow_nan=False) + "\n")
    return write_demo(out, labs, scores, outcomes)


def draw_all(config: DemoConfig, progress: Progress) -> list[Tissue]:
    """Return tissue: first that of the reference set, then that of each lab."""
    indices = range(config.reference + config.labs * config.patches)
    tracked = progress.track(indices, "drawing tissue", len(indices))
    return [draw_tissue(config.seed, index, config.size) for index in tracked]


def learn_styles(config: DemoConfig, held: list[list[Tissue]], progress: Progress) -> tuple[list[DemoLab], BottleGAN]:
    """Run phase 1: each lab stains its tissue, fits its style code and uploads it; the codes make one model."""
    prior, settings = BottleGAN.load(PRIOR), Phase1Config()
    stained, uploads, verdicts = {}, {}, {}
    for k, tissue in progress.track(list(enumerate(held)), "phase 1: labs fit their styles", len(held)):
        # Every other lab is one of the paper's, far from any real stain; the others differ as real labs do.
        variety = LABS if k % 2 == 0 else PAPER
        style = draw_style(numpy_stream(config.seed, "style", k), f"lab-{k + 1:02d}", variety)
        images = _scan(render(_concentrations(tissue), style, torch_stream(config.seed, "noise", k)))
        sent = contribute(from_batch(images), settings, reference_set=None, prior=prior, seed=config.seed)
        stained[style.name], uploads[style.name], verdicts[style.name] = (style, images), sent.arrays, sent.verdict
    model = assemble(uploads, settings, reference_set=None, prior=prior, seed=config.seed)
    labs = []
    for (style, images), tissue in zip(stained.values(), held, strict=True):
        truth, code = _scan(render(_concentrations(tissue), REFERENCE)), model.codes[style.name]
        with torch.no_grad():
            normalized, restained = model.normalize(images, code), model.restain(truth, code)
        epithelium = torch.stack([each.epithelium for each in tissue])
        labs.append(DemoLab(style, images, truth, epithelium, normalized, restained, verdicts[style.name]))
    return labs, model


def score_lab(lab: DemoLab) -> dict[str, float]:
    """Return how far a lab's images are from the truth before and after normalization, and how well it restains."""
    before = compare_images(lab.images, lab.truth)
    after = compare_images(lab.normalized, lab.truth)
    restained = compare_images(lab.restained, lab.images)
    return {
        "mse_before": before.mse.mean().item(),
        "mse": after.mse.mean().item(),
        "ssim_before": before.ssim.mean().item(),
        "ssim": after.ssim.mean().item(),
        "delta_e_before": before.delta_e.mean().item(),
        "delta_e": after.delta_e.mean().item(),
        "mse_restained": restained.mse.mean().item(),
    }


def score_sets(labs: list[DemoLab], reference_set: Tensor) -> dict[str, Json]:
    """Return the Fréchet distance of all labs' images to the reference set, before and after normalization."""
    before = frechet_distance([lab.images for lab in labs], [reference_set])
    after = frechet_distance([lab.normalized for lab in labs], [reference_set])
    return {"before": asdict(before), "after": asdict(after)}


def _concentrations(tissue: list[Tissue]) -> Tensor:
    return torch.stack([each.concentration for each in tissue])


def _scan(images: Tensor) -> Tensor:
    """Round to the 256 levels that a scanner gives."""
    return from_levels(to_levels(images))
