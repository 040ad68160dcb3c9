"""`bottlegan info`: what a slide is like."""

from pathlib import Path
from typing import Annotated

import typer

from bottlegan.cli.options import check_paths


def info(
    slide: Annotated[Path, typer.Argument(help="Slide, or image.", show_default=False)],
) -> None:
    """Say what levels a slide has, how large its pixels are, and how it is stored.

    Example: bottlegan info slide.svs
    """
    check_paths(slide)
    from bottlegan.slides.reader import measure_downsample, open_slide

    with open_slide(slide) as opened:
        typer.echo(f"{slide}")
        typer.echo(f"format         {opened.kind}")
        size = "unknown" if opened.mpp is None else "{:.4g} x {:.4g} micrometers".format(*opened.mpp)
        typer.echo(f"pixel          {size}")
        typer.echo(f"color profile  {'none' if opened.icc is None else f'ICC, {len(opened.icc):,} bytes'}")
        for level, (width, height) in enumerate(opened.levels):
            tile = opened.tile(level)
            how = "decoded directly" if level in opened.direct else "decoded by OpenSlide"
            typer.echo(
                f"level {level:<8} {width:,} x {height:,} px, 1 : {measure_downsample(opened, level):.4g}, "
                f"tiles of {tile.width} x {tile.height} px{'' if opened.kind == 'image' else f', {how}'}"
            )
