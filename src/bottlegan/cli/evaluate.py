"""`bottlegan evaluate`: score a folder of results against ground truth."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from bottlegan.cli.options import check_json, check_paths
from bottlegan.cli.progress import TerminalProgress
from bottlegan.core.files import write_text

if TYPE_CHECKING:
    from bottlegan.quality.evaluate import Evaluation


def evaluate(
    output_dir: Annotated[
        Path, typer.Argument(help="Folder of images to score: normalized/028.png.", show_default=False)
    ],
    truth_dir: Annotated[
        Path, typer.Argument(help="Folder of the true images, with the same names: truth/028.png.", show_default=False)
    ],
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write all scores to this file.")] = None,
    inception: Annotated[
        Path | None, typer.Option(help="Inception weights, for a FID that is comparable with published ones.")
    ] = None,
) -> None:
    """Compare same-named images: MSE, PSNR, SSIM, color difference and FID.

    Suffixes may differ: 028.png is scored against 028.webp. To try it without data, draw a lab and its truth with
    bottlegan synth lab lab-1 --truth truth-1.

    Example: bottlegan evaluate normalized/ truth/ --json scores.json
    """
    check_paths(output_dir, truth_dir, inception)
    check_json(json_file, output_dir, truth_dir, inception)
    from bottlegan.metrics.features import InceptionFeatures
    from bottlegan.quality.evaluate import evaluate_folders

    extractor = None if inception is None else InceptionFeatures(inception)
    result = evaluate_folders(output_dir, truth_dir, extractor, TerminalProgress())
    if json_file is not None:
        write_text(json_file, json.dumps(result.to_json(), indent=2, allow_nan=False) + "\n")
    _show(result, Console())


def _show(result: "Evaluation", console: Console) -> None:
    table = Table(title=f"{len(result.rows)} images")
    for heading in ("score", "mean", "median", "90th percentile"):
        table.add_column(heading, justify="left" if heading == "score" else "right")
    for key, label in (("mse", "MSE"), ("psnr", "PSNR, dB"), ("ssim", "SSIM"), ("delta_e", "color difference, ΔE")):
        values = result.summary()[key]
        table.add_row(label, *(f"{values[part]:.3g}" if key == "mse" else f"{values[part]:.3f}" for part in values))
    console.print(table)
    if result.fid is None:
        console.print("FID: needs at least 2 images")
    else:
        note = "" if result.fid.comparable else "; not comparable with Inception's"
        console.print(f"FID: {result.fid.value:.4f} ({result.fid.extractor} features{note})")
