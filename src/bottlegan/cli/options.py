"""What several commands have in common."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bottlegan.core.errors import InputError, MissingError

if TYPE_CHECKING:
    from bottlegan.normalize.normalizer import Normalizer

ModelOption = Annotated[Path | None, typer.Option("--model", help="Model file.", show_default="the shipped prior")]
StyleOption = Annotated[
    str | None,
    typer.Option("--style", help="The style; a model that knows only one needs no name.", show_default=False),
]
DirectionOption = Annotated[
    Literal["normalize", "restain"],
    typer.Option("--direction", help="From the style to the reference stain, or from that to the style."),
]


def find_model(model: Path | None) -> Path:
    """Return the model file to use: the one given, or the prior that is shipped with the package."""
    from bottlegan.models.document import PRIOR

    return model or PRIOR


def check_paths(*paths: Path | None) -> None:
    """Refuse what is not there, before anything heavy is imported: a typo is to be told at once."""
    for path in paths:
        if path is not None and not path.exists():
            raise MissingError(f"{path}: there is no such file or folder; check the path")


def open_style(file: Path, style: str | None, *, everything: bool = False) -> "Normalizer":
    """Return the normalizer of a style that a model file knows; the only one needs no name."""
    from bottlegan.models.weights import read_document
    from bottlegan.normalize.normalizer import Normalizer

    names = read_document(file).styles
    if not names:
        raise InputError(f"{file}: knows no style; add one with bottlegan onboard IMAGES --name NAME --out FILE")
    if style is None and len(names) > 1:
        known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise InputError(f"{file}: knows {len(names)} styles; choose one with --style NAME: {known}")
    return Normalizer.load(file, style, everything=everything)
