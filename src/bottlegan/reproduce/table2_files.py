"""Table 2 on disk: its rows, their summaries, and the files for output and resuming."""

import csv
import io
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
import torch

import bottlegan
from bottlegan.core.config import document, load, to_json
from bottlegan.core.errors import InputError
from bottlegan.core.files import write_text
from bottlegan.metrics.structure import SWAPPED
from bottlegan.reproduce.paired import Scale


@document
class StyleScore:
    """The scores of one style's patch."""

    mse: float
    psnr: float
    ssim: float
    turned: float
    """Share of clearly light and dark pixel pairs of the truth that change places in the output."""
    monotonic: float
    """Share of the steps toward more hematoxylin in the truth at which the output gets no lighter."""
    restain_mse: float | None = None
    cycle_mse: float | None = None
    degenerate: bool


@document
class Row:
    """The scores of one method. A score is None if the method lacks the ability or the figure is not comparable."""

    key: str
    method: str
    note: str = ""
    commit: str
    """Commit of the code that made the row."""
    styles: int = 0
    mse_mean: float | None = None
    mse_median: float | None = None
    mse_p90: float | None = None
    restain_mean: float | None = None
    restain_median: float | None = None
    reconstruction: float | None = None
    psnr: float | None = None
    ssim: float | None = None
    fid: float | None = None
    swapped: int | None = None
    turned: float | None = None
    monotonic: float | None = None
    degenerate: int | None = None
    parameters: int | None = None
    seconds: float | None = None
    each: dict[str, StyleScore]


@document
class Table2:
    """The table, and how it was made."""

    scale: str
    seed: int
    styles: int
    command: str
    cores: int
    rows: tuple[Row, ...] = ()


def open_table(out: Path, scale: Scale, seed: int, styles: int, data: Path | None) -> Table2:
    """Return the table of an earlier run with the same scale and seed, or an empty one."""
    path = out / "table2.json"
    words = ["--scale", scale, "--seed", str(seed), "--out", str(out)]
    words = [*([] if data is None else ["--data", str(data)]), *words]
    command = shlex.join(["bottlegan", "reproduce", "table2", *words])
    table = Table2(
        scale=scale,
        seed=seed,
        styles=styles,
        command=command,
        cores=torch.get_num_threads(),
    )
    if not path.exists():
        return table
    kept = load(Table2, path)
    if (kept.scale, kept.seed, kept.styles) != (table.scale, table.seed, table.styles):
        raise InputError(
            f"{path}: is of scale {kept.scale}, seed {kept.seed} and {kept.styles} styles, not of {table.scale}, "
            f"{table.seed} and {table.styles}; choose another --out"
        )
    return replace(table, rows=kept.rows)


def find_commit() -> str:
    """Return the commit of this package's repository, or "unknown" without repository or git."""
    git, package = shutil.which("git"), Path(bottlegan.__file__).resolve()
    if git is None:
        return "unknown"
    # A package installed inside another repository must not report that repository's commit.
    for words in (("ls-files", "--error-unmatch", package.name), ("describe", "--always", "--dirty", "--exclude=*")):
        done = subprocess.run([git, "-C", package.parent, *words], capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            return "unknown"
    return done.stdout.strip()


def summarize(row: Row) -> Row:
    """Add the summary of its styles' scores to a row."""
    scores = list(row.each.values())
    mse = [s.mse for s in scores]
    restain = [s.restain_mse for s in scores if s.restain_mse is not None]
    cycle = [s.cycle_mse for s in scores if s.cycle_mse is not None]
    return replace(
        row,
        mse_mean=fmean(mse),
        mse_median=median(mse),
        mse_p90=float(np.quantile(mse, 0.9)),
        restain_mean=fmean(restain) if restain else None,
        restain_median=median(restain) if restain else None,
        reconstruction=fmean(cycle) if cycle else None,
        psnr=fmean(s.psnr for s in scores),
        ssim=fmean(s.ssim for s in scores),
        swapped=sum(s.turned > SWAPPED for s in scores),
        turned=max(s.turned for s in scores),
        monotonic=fmean(s.monotonic for s in scores),
        degenerate=sum(s.degenerate for s in scores),
    )


COLUMNS = (
    ("mse_mean", "MSE mean", ".5f"),
    ("mse_median", "median", ".5f"),
    ("mse_p90", "90th percentile", ".5f"),
    ("restain_mean", "restained MSE mean", ".5f"),
    ("restain_median", "median", ".5f"),
    ("reconstruction", "reconstruction MSE", ".5f"),
    ("psnr", "PSNR, dB", ".2f"),
    ("ssim", "SSIM", ".3f"),
    ("fid", "FID (offline)", ".4f"),
    ("swapped", "swapped", "d"),
    ("turned", "most turned", ".2%"),
    ("monotonic", "monotonic", ".1%"),
    ("degenerate", "degenerate", "d"),
    ("parameters", "parameters", "d"),
    ("seconds", "seconds", ".0f"),
)
"""Field, heading and format of each number in a row."""


def write_table(table: Table2, out: Path) -> None:
    """Write the table as JSON, from which a later run is resumed, as CSV and as Markdown."""
    write_text(out / "table2.csv", to_csv(table.rows))
    write_text(out / "table2.md", to_markdown(table))
    write_text(out / "table2.json", to_json(table))


def to_csv(rows: Sequence[Row]) -> str:
    """Return one line per method, with all digits, without single styles."""
    names = ["method", "styles", *(name for name, _, _ in COLUMNS), "note"]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([getattr(row, name) for name in names] for row in rows)
    return buffer.getvalue()


def to_markdown(table: Table2) -> str:
    """Return the table, with its legend and the command that makes it."""
    commits = ", ".join(dict.fromkeys(row.commit for row in table.rows))
    lines = [
        f"# Table 2: {table.styles} styles to one stain and back",
        "",
        f"`{table.command}`, commit {commits}, {table.cores} core(s), scale {table.scale}, seed {table.seed}.",
        "",
        _line(["method", *(heading for _, heading, _ in COLUMNS), "note"]),
        _line(["---"] * (len(COLUMNS) + 2)),
        *(_line([row.method, *_cells(row), row.note or _NOTHING]) for row in table.rows),
        "",
        *_LEGEND,
        *_same_styles(table.rows),
    ]
    return "\n".join(lines) + "\n"


_NOTHING = "-"
_LEGEND = (
    "Each style is one patch. MSE, PSNR and SSIM: normalized patches against the truth, on all pixels, RGB in [0, 1].",
    "Restained: reference patches in each style, against the truth. Reconstruction: normalized, then restained,",
    "against the patch itself. The paper reports it, and doing nothing wins it. FID: of all normalized patches",
    "against all reference patches with offline features, not comparable with Inception's. Swapped: styles in which",
    f"more than {SWAPPED:.0%} of clearly light and dark pixels change places. Most turned: their share in the worst",
    "style. Monotonic: steps toward more hematoxylin, with as much eosin, at which the output gets no lighter, a mean.",
    "Degenerate: styles that no map can invert, by our closed-form diagnosis. Parameters: of the generators",
    "of one half's model. Seconds: to fit and normalize both halves, including other load on the machine.",
    "Each row has two models: each half of the styles is learned with the other half's reference patches, so no patch",
    "is ever seen in both stains.",
)


def _cells(row: Row) -> list[str]:
    values = [(getattr(row, name), form) for name, _, form in COLUMNS]
    return [_NOTHING if value is None else format(value, form) for value, form in values]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _same_styles(rows: Sequence[Row]) -> list[str]:
    """Compare each row on few styles with the other rows on the same styles."""
    most = max((row.styles for row in rows), default=0)
    lines = []
    for few in (row for row in rows if 0 < row.styles < most):
        others = [row for row in rows if row.each.keys() > few.each.keys()]
        means = [f"{row.method} {fmean(row.each[name].mse for name in few.each):.5f}" for row in (few, *others)]
        lines += ["", f"MSE mean on the {few.styles} styles of {few.method} alone: {', '.join(means)}."]
    return lines
