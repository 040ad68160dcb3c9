"""`bottlegan bench`: measure BottleGAN and its peers in the same run, as ratios."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from bottlegan.cli.fuzz import fuzz
from bottlegan.cli.options import JsonOption, ModelOption
from bottlegan.cli.progress import TerminalProgress
from bottlegan.core.errors import InputError
from bottlegan.core.files import write_text

if TYPE_CHECKING:
    from bottlegan.core.progress import Json

bench = typer.Typer(help="Measure BottleGAN and its peers in the same run.", no_args_is_help=True)
bench.command()(fuzz)

DataOption = Annotated[Path | None, typer.Option(help="Folder of PESO patches.")]
Columns = dict[str, tuple[str, str | None, str]]
"""Columns of a table by heading: the name of a figure, the part to show (None for all of it), and the format."""


@bench.command()
def train(
    data: DataOption = None,
    json_file: JsonOption = None,
    paper_minutes: Annotated[float, typer.Option(help="Minutes that the paper's preset may train.")] = 5.0,
) -> None:
    """Train the default preset and the paper's on PESO patches, and score both against ground truth.

    Example: bottlegan bench train --data peso/ --json bench.json
    """
    from bottlegan.bench.train import bench_train
    from bottlegan.reproduce.paired import load_halves

    progress = TerminalProgress()
    figures = bench_train(load_halves("cpu", data, 0, progress), 60 * paper_minutes, progress)
    write_figures(figures, json_file)
    shown = {key: value for key, value in figures.items() if key != "traces"}
    typer.echo(json.dumps(shown, indent=2))


@bench.command()
def onboard(
    data: DataOption = None,
    json_file: JsonOption = None,
    labs: Annotated[int | None, typer.Option(help="Use N evenly spaced PESO styles.", show_default="all")] = None,
    pairs: Annotated[
        int, typer.Option(help="Pairs of physical labs; verdicts are checked on twice as many labs.", min=1)
    ] = 200,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the true against the expected error into this SVG file.")
    ] = None,
) -> None:
    """Onboard PESO styles and simulated labs with the shipped prior and with the peers. Score all against the truth.

    Physical labs need no data. Without PESO patches, that part is skipped.

    Example: bottlegan bench onboard --data peso/ --pairs 200 --json bench.json --picture reliability.svg
    """
    from bottlegan.bench.physical_labs import bench_physical
    from bottlegan.bench.reliability import bench_reliability, draw_reliability

    if picture is not None and picture.suffix != ".svg":
        raise InputError(f"{picture}: the picture is written as SVG; give a name that ends in .svg")
    progress, console = TerminalProgress(), Console()
    peso = _bench_peso(data, labs, progress, console)
    physical = bench_physical(pairs, progress)
    _show_physical(physical, console)
    reliability = bench_reliability(2 * pairs, progress)
    _show_reliability(reliability, console)
    write_figures({"PESO styles": peso, "physical labs": physical, "reliability": reliability}, json_file)
    if picture is not None:
        draw_reliability(reliability, picture)
        console.print(f"Wrote {picture}.")


def _bench_peso(
    data: Path | None, labs: int | None, progress: TerminalProgress, console: Console
) -> "dict[str, Json] | None":
    """Measure the PESO styles and print the figures; without PESO patches, say so."""
    from bottlegan.bench.onboard import bench_onboard
    from bottlegan.reproduce.paired import VARIABLE, find_peso, load_halves

    try:
        folder = find_peso(data)
    except InputError:
        console.print(f"PESO styles are skipped: there is no --data and no {VARIABLE}.")
        return None
    figures = bench_onboard(load_halves("cpu", folder, 0, progress), labs, progress)
    _show_onboarding(figures, console)
    return figures


@bench.command()
def normalize(
    size: Annotated[int, typer.Option(help="Side of the image, in pixels.")] = 2048,
    json_file: JsonOption = None,
    repeats: Annotated[int, typer.Option(help="Number of measurements; the median is reported.")] = 5,
) -> None:
    """Time the normalization of one image of procedural tissue, compared with the peers.

    Example: bottlegan bench normalize --size 2048 --json bench.json
    """
    from bottlegan.bench.normalize import bench_normalize

    figures = bench_normalize(size, repeats, TerminalProgress())
    write_figures(figures, json_file)
    _show_speed(figures, Console())


@bench.command()
def table(json_file: JsonOption = None) -> None:
    """Compare the exact table of a style with the network, for all 16.7 million colors.

    Example: bottlegan bench table --json bench.json
    """
    from bottlegan.bench.table import bench_table

    figures = bench_table(TerminalProgress())
    write_figures(figures, json_file)
    columns: Columns = {
        "colors that\ndiffer": ("differing", None, "d"),
        "by levels\nat most": ("largest difference", None, "d"),
        "seconds\nto fill": ("seconds to fill", None, ".1f"),
        "of the\nnetwork": ("seconds of the network", None, ".1f"),
        "times\nlooking up": ("ratio of the network to looking up", None, ".0f"),
    }
    _show(f"{figures['colors']:,} colors", figures, columns, Console())


@bench.command()
def slide(
    file: Annotated[Path | None, typer.Option("--slide", help="Slide to measure with. Otherwise one is drawn.")] = None,
    size: Annotated[int, typer.Option(help="Side of the slide that is drawn, in pixels.")] = 20_000,
    quality: Annotated[int, typer.Option(help="Quality of the JPEG tiles that are written.", min=1, max=100)] = 90,
    json_file: JsonOption = None,
    repeats: Annotated[int, typer.Option(help="Number of measurements; the median is reported.")] = 3,
) -> None:
    """Time the normalization of a whole slide against a plain copy of it, and of its tiles against the peers.

    Example: bottlegan bench slide --size 20000 --json bench.json
    """
    from bottlegan.bench.slide import bench_slide

    figures = bench_slide(file, size, quality, repeats, TerminalProgress())
    write_figures(figures, json_file)
    _show_slide(figures, Console())


@bench.command()
def predict(
    file: Annotated[Path | None, typer.Option("--slide", help="Slide to measure with. Otherwise one is drawn.")] = None,
    size: Annotated[int, typer.Option(help="Side of the slide that is drawn, in pixels.")] = 20_000,
    network: Annotated[Path | None, typer.Option(help="Network to measure with. Otherwise one is trained.")] = None,
    json_file: JsonOption = None,
    repeats: Annotated[int, typer.Option(help="Number of measurements; the median is reported.")] = 3,
) -> None:
    """Time the prediction of a whole slide against only reading it. Example: bottlegan bench predict --size 20000."""
    from bottlegan.bench.predict import bench_predict

    figures = bench_predict(file, size, network, repeats, TerminalProgress())
    write_figures(figures, json_file)
    typer.echo(json.dumps(figures, indent=2))


@bench.command()
def federation(
    data: DataOption = None,
    json_file: JsonOption = None,
    clients: Annotated[int, typer.Option(help="Number of labs in the rounds.")] = 20,
    scale: Annotated[
        Literal["smoke", "cpu"],
        typer.Option(help="Labs of phase 1. smoke: a few with procedural tissue. cpu: the labs of Table 1."),
    ] = "cpu",
) -> None:
    """Measure phase 1, restaining, Flower's rounds against a plain loop, a thousand labs, and a deployed message.

    Example: bottlegan bench federation --data peso/ --json bench.json
    """
    from bottlegan.bench.federation import bench_federation

    figures = bench_federation(scale, data, clients, TerminalProgress())
    write_figures(figures, json_file)
    typer.echo(json.dumps(figures, indent=2))


@bench.command()
def reallabs(
    data: Annotated[Path, typer.Option(help="Folder of real labs, with an index.csv.", show_default=False)],
    json_file: JsonOption = None,
    model: ModelOption = None,
    pictures: Annotated[
        Path | None,
        typer.Option(help="Folder for pictures before and after. The images must not be redistributed."),
    ] = None,
) -> None:
    """Normalize images of real laboratories, and compare with the peers: spread, glass, stainings, verdicts.

    Example: bottlegan bench reallabs --data real/ --json bench.json --pictures seen/
    """
    from bottlegan.bench.real_labs import bench_real_labs
    from bottlegan.bench.real_pictures import save_pictures
    from bottlegan.data.real import open_real_data

    real, progress, console = open_real_data(data), TerminalProgress(), Console()
    figures = bench_real_labs(real, model=model, progress=progress)
    write_figures(figures, json_file)
    _show_real_labs(figures, console)
    if pictures is not None:
        for path in save_pictures(real, pictures, model, progress):
            console.print(f"Wrote {path}.")


def write_figures(figures: "dict[str, Json]", json_file: Path | None) -> None:
    """Write figures to a JSON file, unless that is None."""
    if json_file is not None:
        write_text(json_file, json.dumps(figures, indent=2, allow_nan=False) + "\n")


def _show_onboarding(figures: dict[str, Any], console: Console) -> None:
    mse, restained, seconds, verdicts = "normalization MSE", "restaining MSE", "fit seconds", "verdicts"
    errors: Columns = {
        "MSE\nmean": (mse, "mean", ".5f"),
        "\nmedian": (mse, "median", ".5f"),
        "90th\npercentile": (mse, "90th percentile", ".5f"),
        "\nworst": (mse, "worst", ".4f"),
        "restained\nmean": (restained, "mean", ".5f"),
        " \nmedian": (restained, "median", ".5f"),
        "\nSSIM": ("SSIM, mean", None, ".3f"),
    }
    trust: Columns = {
        "seconds\nmean": (seconds, "mean", ".2f"),
        "\nmax": (seconds, "max", ".2f"),
        "\nfailed": ("failed", None, "d"),
        "worse than\nnothing": ("worse than nothing", None, "d"),
        "\nswapped": ("swapped", None, "d"),
        "verdict\ngood": (verdicts, "good", ".0%"),
        "\nuncertain": (verdicts, "uncertain", ".0%"),
        "\nrefused": (verdicts, "refused", ".0%"),
        "\nbytes": ("bytes a lab shares", None, "d"),
    }
    title = f"{figures['labs']} labs, one patch each"
    _show(f"{title}: errors", figures, errors, console)
    _show(f"{title}: cost and trust", figures, trust, console)
    _show_notes(figures, console)
    more = figures["more patches"]
    console.print(
        f"{more['patches']} patches a lab instead of one, {more['labs']} simulated labs: median MSE "
        f"{more['MSE of several patches, median']:.5f} instead of {more['MSE of one patch, median']:.5f}, "
        f"a ratio of {more['ratio']:.2f}; lower in {more['labs that are better']} labs."
    )


def _show_physical(figures: dict[str, Any], console: Console) -> None:
    mse, ratio = "MSE", "ratio to paired affine map"
    columns: Columns = {
        "MSE\nmean": (mse, "mean", ".5f"),
        "\nmedian": (mse, "median", ".5f"),
        "90th\npercentile": (mse, "90th percentile", ".5f"),
        "\nworst": (mse, "worst", ".4f"),
        "times paired\nmap, mean": (ratio, "mean", ".2f"),
        "90th\npercentile ": (ratio, "90th percentile", ".2f"),
        "worse than\nnothing": ("worse than nothing", None, "d"),
        "\nfailed": ("failed", None, "d"),
    }
    for test, results in figures["tests"].items():
        _show(f"{figures['pairs']} pairs of physical labs, {test}", results, columns, console)
    _show_notes({**results, "load average": figures["load average"]}, console)


def _show_reliability(figures: dict[str, Any], console: Console) -> None:
    """Print how well the expected error agrees with the true error."""
    title = f"{figures['H&E labs']} simulated labs not used for tuning: error in levels"
    table = Table("expected", "true", "10th percentile", "90th percentile", "labs", title=title, padding=0)
    for group in figures["deciles"]:
        keys = ("expected", "true", "true, 10th percentile", "true, 90th percentile")
        table.add_row(*(f"{group[key]:.1f}" for key in keys), str(group["labs"]))
    console.print(table)
    columns: Columns = {
        "share": ("share", None, ".0%"),
        "true error,\nmedian": ("true error, median", None, ".1f"),
        "90th\npercentile": ("true error, 90th percentile", None, ".1f"),
    }
    _show("Verdicts on these labs", {"rows": figures["verdicts"]}, columns, console, "verdict")
    console.print(
        f"Rank correlation of expected and true error: {_cell(figures['rank correlation'], None, '.2f')}; they differ "
        f"by a factor of {_cell(figures['factor between expected and true'], None, '.2f')} in the median."
    )
    console.print(
        f"Refused: {figures['H&E labs refused']} of {figures['H&E labs']} H&E labs; "
        f"not refused: {figures['other labs not refused']} of {figures['other labs']} others."
    )


def _show_real_labs(figures: dict[str, Any], console: Console) -> None:
    title = f"{figures['images']} images of {figures['labs']} real labs, {figures['labs with nuclei']} with nuclei"
    for way in ("labs", "images"):
        spread, glass = f"spread, {way}", f"glass, {way}"
        columns: Columns = {
            "spread of\nnuclei": (spread, "nuclei", ".1f"),
            "other\ntissue": (spread, "other tissue", ".1f"),
            "\nboth": (spread, "both", ".1f"),
            "share of\nnothing": (spread, "share of nothing", ".2f"),
            "\ncontrast": (spread, "contrast", ".1f"),
            "nuclei\ndarker": (f"nuclei darker, {way}", None, ".0%"),
            "glass: light-\nness lost": (glass, "lightness lost", ".2f"),
            "chroma\ngained": (glass, "chroma gained", ".2f"),
            " \nfailed": (f"failed, {way}", None, "d"),
        }
        _show(f"{title}, fitted to {way}, in CIE Lab", figures, columns, console)
    slide, restained = "slide", "restained"
    others: Columns = {
        "stainings,\nall places": (restained, "all places", ".2f"),
        "other\nplaces": (restained, "other places", ".2f"),
        "halo\nbefore": (slide, "halo before", ".1f"),
        "\nafter": (slide, "halo after", ".1f"),
        "of the\nmap": (slide, "halo of the map alone", ".1f"),
        "noise\nbefore": (slide, "noise before", ".1f"),
        " \nafter": (slide, "noise after", ".1f"),
        "seconds\nto fit": ("seconds to fit six patches", None, ".2f"),
    }
    _show("Spread between stainings over that within a tile; glass of the slide, in levels", figures, others, console)
    _show_notes(figures, console)
    _show_opinions(figures, console)


def _show_opinions(figures: dict[str, Any], console: Console) -> None:
    """Print the verdicts of the methods that give any."""
    for name, row in figures["rows"].items():
        if not row.get("verdicts, images"):
            continue
        for way in ("images", "labs"):
            shares = ", ".join(f"{share:.0%} {verdict}" for verdict, share in row[f"verdicts, {way}"].items())
            console.print(f"Verdicts of {name}, fitted to {way}: {shares}.")
        table = Table("odd image", "verdict", "reason", title=f"What {name} says of odd images", padding=0)
        for file, opinion in row["odd"].items():
            table.add_row(file, opinion["verdict"], opinion["reason"])
        console.print(table)


def _show_speed(figures: dict[str, Any], console: Console) -> None:
    columns: Columns = {
        "megapixels\na second": ("megapixels a second", None, ".2f"),
        "times\ntorchstain Macenko": ("ratio to torchstain Macenko", None, ".2f"),
    }
    title = f"{figures['size']} x {figures['size']} px, {figures['threads']} thread(s), {figures['repeats']} repeats"
    _show(title, figures, columns, console)
    _show_notes(figures, console)
    console.print(f"Colors: {figures['colors'][0]} in the first image, {figures['colors'][1]} in the second.")


def _show_slide(figures: dict[str, Any], console: Console) -> None:
    columns: Columns = {
        "seconds\nmedian": ("seconds", None, ".2f"),
        "times\npyvips copy": ("ratio to pyvips copy", None, ".2f"),
        "megapixels\na second": ("megapixels a second", None, ".1f"),
        "peak memory\nMB": ("peak memory, MB", None, ".0f"),
    }
    title = f"{figures['megapixels']:.0f} MP, JPEG quality {figures['quality']}, {figures['repeats']} repeats"
    _show(title, figures, columns, console)
    speeds: Columns = {
        "megapixels\na second": ("megapixels a second", None, ".2f"),
        "times\ntorchstain Macenko": ("ratio to torchstain Macenko", None, ".2f"),
    }
    tiles = figures["tiles"]
    _show(f"The map alone, {tiles['tiles']} tiles, {figures['cores']} cores", tiles, speeds, console)
    _show_notes({**tiles, "load average": figures["load average"]}, console)
    for name in ("levels between a tile alone and in the slide", "levels between a tile and its network"):
        console.print(f"{name.capitalize()}, before JPEG, at most: {tiles[name]}.")


def _show(title: str, figures: dict[str, Any], columns: Columns, console: Console, first: str = "method") -> None:
    """Print the measured rows of a benchmark; `first` is the heading of their names."""
    table = Table(first, title=title, padding=0)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in figures["rows"].items():
        if "note" not in row:
            table.add_row(name, *(_cell(row[key], part, form) for key, part, form in columns.values()))
    console.print(table)


def _cell(value: Any, part: str | None, form: str) -> str:
    if value is None or (part is not None and value[part] is None):
        return "-"
    return format(value if part is None else value[part], form)


def _show_notes(figures: dict[str, Any], console: Console) -> None:
    """Print why rows are missing, and how busy the machine was."""
    for name, row in figures["rows"].items():
        if "note" in row:
            console.print(f"{name}: {row['note']}")
    console.print(f"Load average at the end: {figures['load average']:.1f}.")
