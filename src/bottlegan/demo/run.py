"""The demo: the whole method on procedural tissue, in minutes and without any data.

Several labs each stain tissue in their own way. In phase 1 each lab fits its style code, and all codes form one
BottleGAN. In phase 2 the labs train one segmentation network, with and without it. Nobody shares a pixel.
"""

import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from bottlegan.core.config import Count, document, to_values
from bottlegan.core.files import make_folder, write_text
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.core.seeding import numpy_stream, torch_stream
from bottlegan.demo.report import write_demo
from bottlegan.demo.rounds import FIRST, train_together
from bottlegan.federated.server.folder import STYLES
from bottlegan.federated.server.members import read_members
from bottlegan.imaging.tensors import from_levels, to_levels
from bottlegan.metrics.fid import frechet_distance
from bottlegan.metrics.image import compare_images
from bottlegan.models.paradigms import BottleGAN
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import Tissue, draw_tissue
from bottlegan.stain.style import LABS, PAPER, REFERENCE, Style, draw_style


@document
class DemoConfig:
    """The size of the demo."""

    labs: Annotated[int, Field(ge=2, le=1000)] = 6
    patches: Annotated[int, Field(ge=2, le=1000)] = 4
    """Number of patches of each lab: the last one for testing, the others for training."""
    reference: Annotated[int, Field(ge=2, le=1000)] = 16
    """Number of patches in the reference set."""
    size: Annotated[int, Field(ge=96, le=4096)] = 448
    """Side of a patch in pixels."""
    rounds: Count = 50
    """Number of rounds of phase 2."""
    seed: int = 0


@dataclass(frozen=True)
class StainedLab:
    """The images of one lab, and the truth that only a simulation knows."""

    style: Style
    images: Tensor
    """(N, 3, H, W) in the lab's style."""
    truth: Tensor
    """(N, 3, H, W): the same tissue in the reference stain."""
    epithelium: Tensor
    """(N, H, W) bool."""


@dataclass(frozen=True)
class DemoLab(StainedLab):
    """A lab with the results for its images."""

    normalized: Tensor
    restained: Tensor
    """The truth, restained in the lab's style."""
    verdict: str


def run_demo(config: DemoConfig, out: Path, progress: Progress | None = None) -> Path:
    """Run the demo. Write `report.html`, `labs.jpg`, `metrics.json` and the model into `out`; return the report."""
    progress = progress or Silent()
    make_folder(out)
    tissue = draw_all(config, progress)
    reference_set = _scan(render(_concentrations(tissue[: config.reference]), REFERENCE))
    held = [tissue[start : start + config.patches] for start in range(config.reference, len(tissue), config.patches)]
    stained = [stain_lab(config, k, lab) for k, lab in enumerate(held)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outcomes = train_together(stained, config.rounds, config.seed, folder, progress)
        shutil.copy(folder / FIRST.key / STYLES, out / STYLES)
        verdicts = {name: lab.verdict for name, lab in read_members(folder / FIRST.key).clients.items()}
    model = BottleGAN.load(out / STYLES)
    labs = [show_lab(lab, model, verdicts[lab.style.name]) for lab in stained]
    scores = {lab.style.name: score_stains(lab) for lab in progress.track(labs, "scoring labs", len(labs))}
    metrics: dict[str, Json] = {
        "config": to_values(config),
        "mean": {key: sum(lab[key] for lab in scores.values()) / len(scores) for key in scores[labs[0].style.name]},
        "fid": score_sets(labs, reference_set),
        "labs": {lab.style.name: {**scores[lab.style.name], "verdict": lab.verdict} for lab in labs},
        "segmentation": {outcome.key: dict(outcome.scores) for outcome in outcomes},
    }
    progress.event("demo", **metrics)
    write_text(out / "metrics.json", json.dumps(metrics, indent=2, allow_nan=False) + "\n")
    return write_demo(out, labs, scores, outcomes)


def draw_all(config: DemoConfig, progress: Progress) -> list[Tissue]:
    """Return the tissue of the reference set, then that of each lab."""
    indices = range(config.reference + config.labs * config.patches)
    tracked = progress.track(indices, "drawing tissue", len(indices))
    return [draw_tissue(config.seed, index, config.size) for index in tracked]


def stain_lab(config: DemoConfig, k: int, tissue: list[Tissue]) -> StainedLab:
    """Return lab number k with its stained tissue."""
    # Every other lab has one of the paper's styles, far from any real stain; the others differ like real labs.
    variety = LABS if k % 2 == 0 else PAPER
    style = draw_style(numpy_stream(config.seed, "style", k), f"lab-{k + 1:02d}", variety)
    images = _scan(render(_concentrations(tissue), style, torch_stream(config.seed, "noise", k)))
    truth = _scan(render(_concentrations(tissue), REFERENCE))
    return StainedLab(style, images, truth, torch.stack([patch.epithelium for patch in tissue]))


def show_lab(lab: StainedLab, model: BottleGAN, verdict: str) -> DemoLab:
    """Return a lab with its images, normalized and restained by the global BottleGAN."""
    code = model.codes[lab.style.name]
    with torch.no_grad():
        normalized, restained = model.normalize(lab.images, code), model.restain(lab.truth, code)
    return DemoLab(lab.style, lab.images, lab.truth, lab.epithelium, normalized, restained, verdict)


def score_stains(lab: DemoLab) -> dict[str, float]:
    """Return scores of a lab's images against the truth, before and after normalization, and of its restaining."""
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
    return torch.stack([patch.concentration for patch in tissue])


def _scan(images: Tensor) -> Tensor:
    """Round to the 256 levels of a scanner."""
    return from_levels(to_levels(images))
