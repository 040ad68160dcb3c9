"""The document of a model file: JSON beside its tensors, checked before any of it is used."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bottlegan.core.config import document, parse
from bottlegan.core.errors import ConfigError, InputError, ModelFileError
from bottlegan.core.stamp import KEY as CHECKSUM
from bottlegan.core.stamp import is_whole
from bottlegan.models.config import ModelConfig
from bottlegan.stain.style import Style

FORMAT = 3
"""The format that this version reads and writes. Format 1 had other activations, and format 2 a single encoder."""
KEY = "bottlegan"
"""Key of the document in the metadata. It is the only key, because safetensors writes several in random order."""

NETWORK_KEY = "network"
"""Key of the document of a phase 2 network instead, which `models.network_file` reads."""

PRIOR = Path(__file__).with_name("prior.safetensors")
"""The model shipped in the package. It handles any style, given its code. docs/model-card.md describes it."""

Record = Mapping[str, str | int | float]

# Far more than any of our models has, and far less than would exhaust a machine before the tensors are checked.
MAX_TEXT = 2**24
MAX_STYLES = 100_000
MAX_ENCODERS = 16
MAX_PAIRS = 1000
"""Most styles of a many-one-one model, which has two generators per style."""


@document
class ModelDocument:
    """The description of a model file's tensors."""

    format: int
    model: ModelConfig
    styles: tuple[str, ...]
    """Names of the styles, in the order of their codes."""
    reference: Style | None = None
    """The reference stain that the model normalizes to, if known."""
    encoders: tuple[int, ...] = ()
    """Widths of the encoders that onboard labs."""
    record: dict[str, str | int | float]
    """How the model was trained."""


def read_text(text: str | None, path: Path) -> ModelDocument:
    """Return the document of the model file `path`, checked."""
    if text is None:
        raise ModelFileError(f"{path}: not a BottleGAN model; give a safetensors file that `bottlegan train` wrote")
    if len(text) > MAX_TEXT:
        raise ModelFileError(f"{path}: its document has {len(text)} characters, at most {MAX_TEXT} are read")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(one_line(f"{path}: its document is not JSON ({error}); save the model again")) from None
    if isinstance(values, dict):
        values.pop(CHECKSUM, None)
    return check_document(values, path)


def check_whole(text: str, path: Path) -> None:
    """Refuse a file whose document has a checksum that does not match. All files written now have one."""
    if f'"{CHECKSUM}"' in text and not is_whole(path.read_bytes()):
        raise ModelFileError(f"{path}: is damaged: its checksum does not match; copy or download it again")


def check_document(values: Any, path: Path) -> ModelDocument:
    """Return the document after checking every key, and bounding every size that a model is built with."""
    # Checked first, because a newer document may have other keys.
    found = values.get("format") if isinstance(values, dict) else None
    if type(found) is int and found > FORMAT:
        raise ModelFileError(
            f"{path}: written by a newer BottleGAN (format {found}, this one reads {FORMAT}); upgrade bottlegan"
        )
    if type(found) is int and 0 < found < FORMAT:
        raise ModelFileError(
            f"{path}: written by an older BottleGAN (format {found}, this one reads {FORMAT}); train or fit it again"
        )
    try:
        checked = parse(ModelDocument, values, str(path))
        for name in checked.styles:
            check_name(name)
    except (ConfigError, RecursionError) as error:
        raise ModelFileError(one_line(str(error))) from None
    except InputError as error:
        raise ModelFileError(one_line(f"{path}: {error}")) from None
    config, pairs = checked.model, checked.model.paradigm == "many-one-one"
    bounds = {
        "format": (checked.format, FORMAT, FORMAT),
        "number of styles": (len(checked.styles), 0, MAX_PAIRS if pairs else MAX_STYLES),
        "number of encoders": (len(checked.encoders), 0, MAX_ENCODERS if config.paradigm == "many-one-many" else 0),
    } | {f"encoders[{index}]": (width, 1, 1024) for index, width in enumerate(checked.encoders)}
    for key, (value, low, high) in bounds.items():
        if not low <= value <= high:
            raise ModelFileError(f"{path}: `{key}` must be from {low} to {high}, got {_short(value)}")
    if len(set(checked.styles)) < len(checked.styles):
        raise ModelFileError(f"{path}: two styles have the same name; names must differ")
    if pairs and config.code_size != len(checked.styles):
        raise ModelFileError(
            f"{path}: a many-one-one model has as many numbers in a code as styles, got {config.code_size} and "
            f"{len(checked.styles)}; build a new one instead of adding or removing styles"
        )
    _check_reference(checked.reference, path)
    return checked


def _check_reference(stain: Style | None, path: Path) -> None:
    if stain is None:
        return
    triples = {"hematoxylin": stain.hematoxylin, "eosin": stain.eosin}
    for key, values in triples.items():
        if not all(0 <= value <= 2 * math.log(256) for value in values):
            raise ModelFileError(f"{path}: `reference.{key}` must be optical densities from 0 to 11, got {values}")


def check_name(name: str) -> None:
    """Refuse a style's name that does not fit into one line or into a file name."""
    if not name.strip() or name in (".", "..") or len(name) > 200 or not name.isprintable() or set(name) & {"/", "\\"}:
        raise InputError(
            f"a style cannot be called {name[:80]!r}; use 1 to 200 printable characters without slashes or backslashes"
        )


def _short(value: int) -> str:
    """Return an integer, or only its number of digits if it is long."""
    return str(value) if abs(value) < 10**9 else f"a number of {math.floor(math.log10(abs(value))) + 1} digits"


def one_line(text: str) -> str:
    """Return text from a file in a form safe for a terminal: one short line without control characters."""
    return "".join(character if character.isprintable() else "?" for character in text)[:600]
