"""The demo: several labs stain procedural tissue each in its own way, and all of it is brought to one stain."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from bottlegan.config import document, to_values
from bottlegan.data.synthetic import draw_tissue
from bottlegan.errors import ConfigError
from bottlegan.experiments.report import Grid, Table, paint, write_report
from bottlegan.files import make_folder, write_text
from bottlegan.metrics.fid import frechet_distance
from bottlegan.metrics.image import compare_images
from bottlegan.progress import Json, Progress, Silent
from bottlegan.seeding import numpy_stream, torch_stream
from bottlegan.slides.image import Levels, from_batch, write_image
from bottlegan.stain.density import from_levels, to_levels
from bottlegan.stain.macenko import Diagnosis, Reference, fit_density_map, sample_density, summarize_reference
from bottlegan.stain.simulate import LABS, PAPER, REFERENCE, Style, draw_style, render


@document
class DemoConfig:
    """How large the demo is."""

    labs: int = 6
    patches: int = 4
    """Patches of each lab."""
    reference: int = 16
    """Patches in the reference set."""
    size: int = 448
    """Side of a patch in pixels."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Check that there is something to show."""
        if self.labs < 1 or self.labs * self.patches < 2 or self.reference < 2:
            raise ConfigError("a demo needs at least 1 lab, 2 patches of all labs and 2 reference patches")


@dataclass(frozen=True)
class Lab:
    """What one lab has, what became of it, and the truth that only a simulation knows."""

    style: Style
    images: Tensor
    """(N, 3, H, W) in the lab's style."""
    truth: Tensor
    """(N, 3, H, W): the same tissue in the reference stain."""
    normalized: Tensor
    restained: Tensor
    """The truth, brought to the lab's style."""
    diagnosis: Diagnosis


def run_demo(config: DemoConfig, out: Path, progress: Progress | None = None) -> Path:
    """Run the demo, write `report.html`, `labs.jpg` and `metrics.json` into `out`, and return the report's path."""
    progress = progress or Silent()
    make_folder(out)
    content = draw_contents(config, progress)
    reference_set = _scan(render(content[: config.reference], REFERENCE))
    reference = summarize_reference([reference_set])
    held = content[config.reference :].split(config.patches)
    labs = [
        normalize_lab(config, k, patches, reference)
        for k, patches in progress.track(list(enumerate(held)), "normalizing labs", len(held))
    ]
    scores = {lab.style.name: score_lab(lab) for lab in progress.track(labs, "scoring labs", len(labs))}
    fid = score_sets(labs, reference_set)
    metrics: dict[str, Json] = {
        "config": to_values(config),
        "mean": {key: _mean(scores, key) for key in next(iter(scores.values()))},
        "fid": fid,
        "labs": {lab.style.name: {**scores[lab.style.name], "diagnosis": asdict(lab.diagnosis)} for lab in labs},
    }
    progress.event("demo", **metrics)
    write_text(out / "metrics.json", json.dumps(metrics, indent=2, allow_nan=False) + "\n")
    grids = _grids(labs)
    write_image(out / "labs.jpg", paint(grids[0], side=168))
    report = out / "report.html"
    write_report(report, "BottleGAN demo", _lead(config), [_table(labs, scores), *grids])
    return report


def draw_contents(config: DemoConfig, progress: Progress) -> Tensor:
    """Return concentrations (N, 2, H, W): first those of the reference set, then those of each lab's own tissue."""
    indices = range(config.reference + config.labs * config.patches)
    tracked = progress.track(indices, "drawing tissue", len(indices))
    return torch.stack([draw_tissue(config.seed, index, config.size).concentration for index in tracked])


def normalize_lab(config: DemoConfig, k: int, content: Tensor, reference: Reference) -> Lab:
    """Stain a lab's tissue, then normalize it from its images and the reference statistics alone."""
    # Every other lab is one of the paper's, far from any real stain; the others differ as real labs do.
    variety = LABS if k % 2 == 0 else PAPER
    style = draw_style(numpy_stream(config.seed, "style", k), f"lab-{k + 1:02d}", variety)
    images = _scan(render(content, style, torch_stream(config.seed, "noise", k)))
    truth = _scan(render(content, REFERENCE))
    fitted = fit_density_map(sample_density(images).flatten(0, 1)[None], reference)
    return Lab(style, images, truth, fitted(images), fitted.inverse()(truth), fitted.diagnoses[0])


def score_lab(lab: Lab) -> dict[str, float]:
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


def score_sets(labs: list[Lab], reference_set: Tensor) -> dict[str, Json]:
    """Return the Fréchet distance of all labs' images to the reference set, before and after normalization."""
    before = frechet_distance([lab.images for lab in labs], [reference_set])
    after = frechet_distance([lab.normalized for lab in labs], [reference_set])
    return {"before": asdict(before), "after": asdict(after)}


def _scan(images: Tensor) -> Tensor:
    """Round to the 256 levels that a scanner gives."""
    return from_levels(to_levels(images))


def _mean(scores: dict[str, dict[str, float]], key: str) -> float:
    return sum(score[key] for score in scores.values()) / len(scores)


def _lead(config: DemoConfig) -> str:
    return (
        f"{config.labs} simulated labs stain {config.patches} patches of procedural tissue each, in their own way. "
        "Each is brought to one reference stain from its images alone: nobody sees the same tissue in both stains. "
        "Because the tissue is simulated, the truth is known, and the result can be scored against it."
    )


def _table(labs: list[Lab], scores: dict[str, dict[str, float]]) -> Table:
    columns = ("lab", "MSE as stained", "normalized", "SSIM as stained", "normalized", "ΔE as stained", "normalized")
    rows = []
    for lab in labs:
        s = scores[lab.style.name]
        mse = (f"{s['mse_before']:.4f}", f"{s['mse']:.4f}")
        rest = (f"{s[key]:.2f}" for key in ("ssim_before", "ssim", "delta_e_before", "delta_e"))
        rows.append((lab.style.name, *mse, *rest, lab.diagnosis.reason))
    caption = (
        "Against the same tissue in the reference stain. Low MSE and ΔE (color difference) and high SSIM are good."
    )
    return Table("How close the result is", caption, (*columns, "what was found"), rows)


def _grids(labs: list[Lab]) -> list[Grid]:
    """Show one patch of each lab, in both directions."""

    def rows(*which: str) -> list[tuple[str, list[Levels]]]:
        return [(lab.style.name, [from_batch(getattr(lab, name)[:1])[0] for name in which]) for lab in labs]

    return [
        Grid(
            "Normalized",
            "The lab's own stain, what was made of it, and the truth.",
            ("", "as stained", "normalized", "truth"),
            rows("images", "normalized", "truth"),
        ),
        Grid(
            "Restained",
            "The other direction: reference-stained tissue, brought to each lab's style, and the truth.",
            ("", "reference stain", "restained", "truth"),
            rows("truth", "restained", "images"),
        ),
    ]
