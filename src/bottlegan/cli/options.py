"""What several commands have in common."""

from pathlib import Path
from typing import Annotated

import typer

from bottlegan.errors import MissingError

ModelOption = Annotated[Path | None, typer.Option("--model", help="Model file.", show_default="the shipped prior")]


def find_model(model: Path | None) -> Path:
    """Return the model file to use: the one given, or the prior that is shipped with the package."""
    from bottlegan.models.document import PRIOR

    return model or PRIOR


def check_paths(*paths: Path | None) -> None:
    """Refuse what is not there, before anything heavy is imported: a typo is to be told at once."""
    for path in paths:
        if path is not None and not path.exists():
            raise MissingError(f"{path}: there is no such file or folder; check the path")
