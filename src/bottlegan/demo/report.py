"""The demo's report: pictures of the stains before and after, with curves and tables of the scores."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bottlegan.demo.rounds import Outcome
from bottlegan.imaging.files import Pixels, write_image
from bottlegan.imaging.tensors import from_batch
from bottlegan.quality.curves import draw_curves
from bottlegan.quality.report import Drawing, Grid, Table, paint, write_report
from bottlegan.reproduce.table1_files import COLUMNS, METRICS

if TYPE_CHECKING:
    from bottlegan.demo.run import DemoLab


def write_demo(
    out: Path, labs: Sequence["DemoLab"], scores: Mapping[str, Mapping[str, float]], outcomes: Sequence[Outcome]
) -> Path:
    """Write `report.html` and `labs.jpg` into `out`, and return the former's path."""
    grids = show_labs(labs)
    write_image(out / "labs.jpg", paint(grids[0], side=168))
    report = out / "report.html"
    ways, stains = compare_ways(outcomes), compare_images(labs, scores)
    sections: list[Table | Grid | Drawing] = [ways, draw_rounds(outcomes), *grids, stains]
    write_report(report, "BottleGAN demo", describe(labs, outcomes), sections)
    return report


def describe(labs: Sequence["DemoLab"], outcomes: Sequence[Outcome]) -> str:
    """Return a summary of the demo in a few sentences."""
    iou = {outcome.key: outcome.scores["iou"] for outcome in outcomes}
    return (
        f"{len(labs)} simulated labs each stain {len(labs[0].images)} patches of procedural tissue in their own way. "
        "In phase 1 each lab fits a style code to its own images and uploads it once: 96 bytes. In phase 2 the labs "
        "train one network to find epithelium. Every other lab has labels, and all are tested in their own stain. "
        f"Without BottleGAN the network reaches an IOU of {iou['fedavgm']:.2f}, with BottleGAN "
        f"{iou['bottlegan-normalize']:.2f}. If all labs stained alike, it would reach {iou['oracle']:.2f}. No pixel "
        "left any lab."
    )


def compare_ways(outcomes: Sequence[Outcome]) -> Table:
    """Return the table of phase 2."""
    rows = [(way.name, *(f"{way.scores[metric]:.3f}" for metric in METRICS)) for way in outcomes]
    caption = "Scores on the test patches of all labs after the last round. High IOU, low ECE and low NLL are good."
    return Table("One network from all labs", caption, ("training", *COLUMNS), rows)


def draw_rounds(outcomes: Sequence[Outcome]) -> Drawing:
    """Return the curves of phase 2."""
    panels = {
        title: {way.name: [(number, scores[metric]) for number, scores in way.curve] for way in outcomes}
        for title, metric in zip(COLUMNS, METRICS, strict=True)
    }
    return Drawing("Over the rounds", "The same scores during training.", draw_curves(panels, "scores over the rounds"))


def compare_images(labs: Sequence["DemoLab"], scores: Mapping[str, Mapping[str, float]]) -> Table:
    """Return the table of phase 1."""
    columns = ("lab", "MSE as stained", "normalized", "SSIM as stained", "normalized", "ΔE as stained", "normalized")
    rows = []
    for lab in labs:
        lab_scores = scores[lab.style.name]
        mse = (f"{lab_scores['mse_before']:.4f}", f"{lab_scores['mse']:.4f}")
        rest = (f"{lab_scores[key]:.2f}" for key in ("ssim_before", "ssim", "delta_e_before", "delta_e"))
        rows.append((lab.style.name, *mse, *rest, lab.verdict))
    caption = (
        "Against the same tissue in the reference stain. Low MSE and ΔE (color difference) and high SSIM are good."
    )
    return Table("Distance from the reference stain", caption, (*columns, "verdict"), rows)


def show_labs(labs: Sequence["DemoLab"]) -> list[Grid]:
    """Show one patch of each lab, in both directions."""

    def rows(*which: str) -> list[tuple[str, list[Pixels]]]:
        return [(lab.style.name, [from_batch(getattr(lab, name)[:1])[0] for name in which]) for lab in labs]

    return [
        Grid(
            "Normalized",
            "The lab's own stain, the normalized image, and the truth.",
            ("", "as stained", "normalized", "truth"),
            rows("images", "normalized", "truth"),
        ),
        Grid(
            "Restained",
            "The other direction: reference-stained tissue, restained in each lab's style, and the truth.",
            ("", "reference stain", "restained", "truth"),
            rows("truth", "restained", "images"),
        ),
    ]
