"""The demo's report: pictures of what became of the stains, curves and tables of what that is worth."""

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
    """Return what happened, in a few sentences."""
    iou = {outcome.key: outcome.scores["iou"] for outcome in outcomes}
    return (
        f"{len(labs)} simulated labs stain {len(labs[0].images)} patches of procedural tissue each, in their own way. "
        "In phase 1 each lab fits a style code to its images alone and uploads it, 96 bytes, once. In phase 2 they "
        "train one network to find epithelium; every other lab has labels, all are tested in their own stain. Without "
        f"BottleGAN the network reaches an IOU of {iou['fedavgm']:.2f}, with it {iou['bottlegan-normalize']:.2f}; had "
        f"all labs stained alike, it would be {iou['oracle']:.2f}. No pixel has left any lab."
    )


def compare_ways(outcomes: Sequence[Outcome]) -> Table:
    """Return the table of phase 2."""
    rows = [(each.name, *(f"{each.scores[metric]:.3f}" for metric in METRICS)) for each in outcomes]
    caption = "On the test patches of all labs, after the last round. High IOU, low ECE and low NLL are good."
    return Table("One network from all labs", caption, ("training", *COLUMNS), rows)


def draw_rounds(outcomes: Sequence[Outcome]) -> Drawing:
    """Return the curves of phase 2."""
    panels = {
        title: {each.name: [(number, found[metric]) for number, found in each.curve] for each in outcomes}
        for title, metric in zip(COLUMNS, METRICS, strict=True)
    }
    return Drawing("Over the rounds", "The same, while it was trained.", draw_curves(panels, "scores over the rounds"))


def compare_images(labs: Sequence["DemoLab"], scores: Mapping[str, Mapping[str, float]]) -> Table:
    """Return the table of phase 1."""
    columns = ("lab", "MSE as stained", "normalized", "SSIM as stained", "normalized", "ΔE as stained", "normalized")
    rows = []
    for lab in labs:
        found = scores[lab.style.name]
        mse = (f"{found['mse_before']:.4f}", f"{found['mse']:.4f}")
        rest = (f"{found[key]:.2f}" for key in ("ssim_before", "ssim", "delta_e_before", "delta_e"))
        rows.append((lab.style.name, *mse, *rest, lab.verdict))
    caption = (
        "Against the same tissue in the reference stain. Low MSE and ΔE (color difference) and high SSIM are good."
    )
    return Table("How close the stains come", caption, (*columns, "verdict"), rows)


def show_labs(labs: Sequence["DemoLab"]) -> list[Grid]:
    """Show one patch of each lab, in both directions."""

    def rows(*which: str) -> list[tuple[str, list[Pixels]]]:
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
