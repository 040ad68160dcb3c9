"""What several commands have in common."""

from pathlib import Path
from typing import Annotated

import typer

ModelOption = Annotated[Path | None, typer.Option("--model", help="Model file.", show_default="the shipped prior")]


def find_model(model: Path | None) -> Path:
    """Return the model file to use: the one given, or the prior that is shipped with the package."""
    from bottlegan.models.files import PRIOR

    return model or PRIOR
