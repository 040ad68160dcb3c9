"""Options and checks that several commands share."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from bottlegan.core.errors import InputError, list_names
from bottlegan.core.files import check_apart, check_readable, check_writable

if TYPE_CHECKING:
    from bottlegan.normalize.normalizer import Normalizer

Document = TypeVar("Document")
ModelOption = Annotated[Path | None, typer.Option("--model", help="Model file.", show_default="the shipped prior")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Also write all figures to this file.")]
StyleOption = Annotated[
    str | None,
    typer.Option("--style", help="Name of the style. Optional if the model has only one.", show_default=False),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings; docs/reference/settings.md lists them all.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Change one setting, after --config. Can be repeated.", metavar="KEY=VALUE", show_default=False
    ),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        help="Allow this function to build a custom network. Its code runs, so allow only what you trust.",
        metavar="PACKAGE.MODULE:FUNCTION",
        show_default=False,
    ),
]
DirectionOption = Annotated[
    Literal["normalize", "restain"],
    typer.Option("--direction", help="normalize: style to reference stain. restain: reference stain to style."),
]


def find_model(model: Path | None) -> Path:
    """Return the model file to use: `model`, or else the prior that the package ships."""
    from bottlegan.models.document import PRIOR

    return model or PRIOR


def check_paths(*paths: Path | None) -> None:
    """Refuse inputs that do not exist or cannot be read, before anything heavy is imported."""
    for path in paths:
        if path is not None:
            check_readable(path)


def load_settings(cls: type[Document], config: Path | None, changes: Sequence[str] | None) -> Document:
    """Return settings: the defaults, overridden by a TOML file, overridden by `--set`."""
    from bottlegan.core.config import change, parse, read_values

    values = {} if config is None else read_values(config)
    source = "settings" if config is None else str(config)
    return parse(cls, change(values, changes or ()), source)


def check_model_path(out: Path) -> None:
    """Refuse a path where no model file can be written, before anything is computed."""
    if out.suffix != ".safetensors":
        raise InputError(f"{out}: the name of a model file must end in .safetensors; change the name")
    check_writable(out)


def check_json(json_file: Path | None, *inputs: Path | None) -> None:
    """Refuse a file for figures that cannot be written, or is an input, before anything is computed."""
    if json_file is not None:
        check_writable(json_file)
        check_apart([json_file], inputs)


def report_failures(failures: Sequence[Exception | str], total: int, things: str, target: Path) -> None:
    """Print why files of a folder failed and how many succeeded. Exit with status 2 if any failed."""
    for failure in failures:
        typer.echo(f"bottlegan: {' '.join(str(failure).split())}", err=True)
    typer.echo(f"{total - len(failures)} of {total} {things} are in {target}.")
    if failures:
        raise typer.Exit(2)


def open_style(file: Path, style: str | None, *, everything: bool = False) -> "Normalizer":
    """Return the normalizer of a style of a model file. The name is optional if there is only one."""
    from bottlegan.models.weights import read_document
    from bottlegan.normalize.normalizer import Normalizer

    names = read_document(file).styles
    if not names:
        raise InputError(f"{file}: has no style; add one with bottlegan onboard IMAGES --name NAME --out FILE")
    if style is None and len(names) > 1:
        raise InputError(f"{file}: has {len(names)} styles; choose one with --style NAME: {list_names(names)}")
    return Normalizer.load(file, style, everything=everything)
