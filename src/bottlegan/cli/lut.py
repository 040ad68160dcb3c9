"""`bottlegan lut`: a style's color map as a table for other software, and checks of that map."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bottlegan.cli.options import DirectionOption, ModelOption, StyleOption, check_paths, find_model, open_style
from bottlegan.cli.progress import TerminalProgress
from bottlegan.core.errors import InputError
from bottlegan.core.files import check_apart, check_writable

if TYPE_CHECKING:
    from bottlegan.colormap.checks import Color, Jump, MapChecks
    from bottlegan.colormap.cube import Deviation
    from bottlegan.imaging.files import Pixels
    from bottlegan.models.freeze import Direction
    from bottlegan.normalize.normalizer import Normalizer

CLOSE_MEAN, CLOSE_LARGEST = 1.0, 8
"""Mean and largest error, in levels, of a table that is close enough: less than the error of JPEG at quality 90."""


def lut(
    style: StyleOption = None,
    model: ModelOption = None,
    direction: DirectionOption = "normalize",
    size: Annotated[
        int | None, typer.Option(help="Colors along each side of the table: 17, 33 or 65.", show_default="33")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Table to write, FILE.cube. A picture, FILE.png, is written beside it.")
    ] = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Map and check all 256^3 colors, and print their SHA-256. Takes a few seconds."),
    ] = False,
    check: Annotated[
        Path | None, typer.Option(help="A .cube file from any software, to compare with the model.")
    ] = None,
) -> None:
    """Write a style's color map as a .cube file, which color software can apply, and check the map.

    A .cube file is coarse. Its error is measured, printed and stored in its header. BottleGAN itself maps every color
    exactly.

    Example: bottlegan lut --model model.safetensors --style lab-3 --out lab-3.cube
    """
    from bottlegan.colormap.checks import STRIDE, check_map
    from bottlegan.colormap.cube import check_size, check_target, measure, read_cube, write_cube
    from bottlegan.imaging.files import write_image
    from bottlegan.normalize.cube import make_cube

    if out is None and check is None:
        raise InputError("nothing to do; name a table to write with --out FILE.cube, or one to --check")
    if size is not None and out is None:
        raise InputError("--size is for the table to write; leave it out, or name a table with --out FILE.cube")
    side = 33 if size is None else size
    check_size(side)
    if out is not None:
        check_target(out)
        check_writable(out.with_suffix(".png"))
        check_apart([out, out.with_suffix(".png")], [model, check])
    check_paths(model, check)
    other = None if check is None else read_cube(check)
    normalizer = open_style(find_model(model), style)
    table = normalizer.color_map(direction)
    digest = table.digest(TerminalProgress()) if exact else None
    measured_tables: list[tuple[str, tuple[Deviation, ...]]] = []
    if other is not None:
        measured_tables.append((str(check), measure(other.grid, table)))
    if out is not None:
        cube, deviations = make_cube(normalizer, side, direction, digest)
        measured_tables.append((str(out), deviations))
        picture = _draw(normalizer, direction)
        write_cube(out, cube)
        write_image(out.with_suffix(".png"), picture)
    console = Console()
    _show_checks(check_map(table, 1 if exact else STRIDE), normalizer.name, direction, console)
    for name, deviations in measured_tables:
        _show_deviations(name, deviations, console)
    if digest is not None:
        typer.echo(f"SHA-256 of the exact table: {digest}")
    if out is not None:
        typer.echo(f"Wrote {out} and {out.with_suffix('.png').name}.")


def _draw(normalizer: "Normalizer", direction: "Direction") -> "Pixels":
    """Return a picture of the map, with stains in the colors of the images that the map is meant for."""
    from bottlegan.quality.lut_picture import draw_map, mix_all
    from bottlegan.stain.style import REFERENCE

    mixes = mix_all(normalizer.model.document.reference or REFERENCE)
    return draw_map(normalizer.color_map(direction), mixes if direction == "restain" else normalizer.restain(mixes))


def _show_checks(checks: "MapChecks", name: str, direction: "Direction", console: Console) -> None:
    from bottlegan.colormap.checks import DARK, MOST_JUMP, MOST_LIGHTER, MOST_WHITE_SHIFT

    table = Table(title=escape(f"{direction}: {name}"))
    for heading in ("check", "result", "at most", "verdict"):
        table.add_column(heading)

    def add(check: str, result: str, value: float, limit: float | None = None, unit: str = "") -> None:
        verdict = "" if limit is None else "fine" if value <= limit else "[bold red]look at it[/]"
        table.add_row(check, result, "" if limit is None else f"{limit:g}{unit}", verdict)

    # The glass of the reference stain is white; that of a lab need not be.
    most = None if direction == "restain" else MOST_WHITE_SHIFT
    add("white becomes", f"{_say(checks.white)}: {checks.white_shift} levels off", checks.white_shift, most)
    for path, share in checks.lighter.items():
        add(f"lighter along {path}", f"{share:.1%} of steps", 100 * share, 100 * MOST_LIGHTER, "%")
    jump = f"{_say_jump(checks.jump)}, channels from {DARK}"
    add("jump between neighbors", jump, checks.jump.levels, MOST_JUMP)
    add("jump of dark neighbors", _say_jump(checks.dark_jump), checks.dark_jump.levels)
    table.caption = f"Neighbors: {checks.dark_jump.pairs:,} pairs of colors, one level of one channel apart."
    console.print(table)


def _say(color: "Color") -> str:
    return " ".join(map(str, color))


def _say_jump(jump: "Jump") -> str:
    return f"{jump.levels} levels at {_say(jump.color)}"


def _show_deviations(name: str, deviations: "tuple[Deviation, ...]", console: Console) -> None:
    table = Table(title=escape(f"{name}: error in levels"))
    for heading in ("measured on", "mean", "largest", "off by more than 1", "verdict"):
        table.add_column(heading, justify="left" if heading in ("measured on", "verdict") else "right")
    for deviation in deviations:
        verdict = (
            "close enough"
            if deviation.mean <= CLOSE_MEAN and deviation.largest <= CLOSE_LARGEST
            else "for a preview only"
        )
        share = f"{deviation.off:.3%} of colors"
        table.add_row(deviation.colors, f"{deviation.mean:.4f}", str(deviation.largest), share, verdict)
    table.caption = f"Close enough: off by at most {CLOSE_MEAN:g} levels on average and {CLOSE_LARGEST} anywhere."
    console.print(table)
