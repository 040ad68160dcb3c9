"""A model as one `.safetensors` file: its tensors, and one JSON document that says what they are.

A file comes from anywhere, so nothing in it is believed. The document is checked and its sizes bounded first; then the
names and shapes of the tensors are compared with those of a model without memory; only then is any number read.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from bottlegan.config import document, parse, to_values
from bottlegan.errors import ConfigError, InputError, MissingError, ModelFileError
from bottlegan.files import replacing
from bottlegan.models.config import ModelConfig
from bottlegan.models.encoder import StyleEncoder
from bottlegan.models.paradigms import PARADIGMS, BottleGAN, StyleModel
from bottlegan.models.style_codes import StyleCodes, check_name
from bottlegan.stain.density import BLACK
from bottlegan.stain.style import Style

FORMAT = 2
"""The form of the document that this version reads and writes. Format 1 had other activations: it maps differently."""
KEY = "bottlegan"
"""Where the document is in the metadata. There is no other key: safetensors writes several in random order."""

PRIOR = Path(__file__).with_name("prior.safetensors")
"""The model shipped in the package, which knows any style once it is given its code; docs/model-card.md is about it."""

Record = Mapping[str, str | int | float]

# Far more than any model of ours has, and far less than would exhaust a machine before the tensors are compared.
MAX_TEXT = 2**24
MAX_STYLES = 100_000
MAX_CONDITION = 1e6
"""Of the stains of an encoder, above which they cannot be told apart."""
MAX_PAIRS = 1000
"""Styles of a many-one-one model, which has two generators for each."""


@document
class ModelDocument:
    """What a model file says about its tensors."""

    format: int
    model: ModelConfig
    styles: tuple[str, ...]
    """Names of the styles, in the order of their codes."""
    reference: Style | None = None
    """The reference stain that the model normalizes to, where it is known."""
    encoder: int = 0
    """Width of the encoder that onboards labs; 0 if the model has none."""
    record: dict[str, str | int | float]
    """How the model was trained."""


def save_model(
    model: StyleModel, path: Path, record: Record = MappingProxyType({}), reference: Style | None = None
) -> None:
    """Write a model to `path`, whole or not at all; the same arguments give the same bytes.

    Args:
        model: Its weights must be finite and float32; its mode and device do not matter.
        path: Where to; an older file is replaced.
        record: How the model was trained: names, and strings or finite numbers.
        reference: The reference stain that the model normalizes to, where it is known.
    """
    values: dict[str, Any] = {
        "format": FORMAT,
        "model": to_values(model.config),
        "styles": model.codes.names,
        "encoder": encoder_width(model),
        "record": dict(record),
    }
    if reference is not None:
        values["reference"] = to_values(reference)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    # What could not be read again must not be written.
    checked = _check_document(values, path)
    _check_layout(checked, {name: (str(t.dtype), tuple(t.shape)) for name, t in tensors.items()}, path)
    _check_finite(tensors, path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder, a model is one file; add a file name")
    with replacing(path) as temporary:
        temporary.write_bytes(save(tensors, {KEY: json.dumps(values, sort_keys=True, allow_nan=False)}))


def encoder_width(model: StyleModel) -> int:
    """Return the width of a model's encoder; 0 if it has none."""
    return model.encoder.width if isinstance(model, BottleGAN) and model.encoder is not None else 0


def load_model(path: Path) -> StyleModel:
    """Read a model, in evaluation mode on the CPU; it maps colors exactly as the one that was saved."""
    with _open(path) as file:
        checked = _read_document(file, path)
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
        layout = {name: (_dtype(part.get_dtype()), tuple(part.get_shape())) for name, part in slices.items()}
        model = _check_layout(checked, layout, path)
        # Cloned, because what is read is a view of the file, which others may change.
        tensors = {name: file.get_tensor(name).clone() for name in layout}
    _check_finite(tensors, path)
    model.load_state_dict(tensors, strict=True, assign=True)
    _check_encoder(model, path)
    return model.eval()


def read_document(path: Path) -> ModelDocument:
    """Read what a model file says about itself, checked, without its tensors."""
    with _open(path) as file:
        return _read_document(file, path)


def _open(path: Path) -> Any:
    """Open a safetensors file, whose header is checked against the file's length by that."""
    if not path.exists():
        raise MissingError(f"{path}: there is no such model file; check the path")
    if not path.is_file():
        raise ModelFileError(f"{path}: is not a file; give a .safetensors file")
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ModelFileError(
            _one_line(f"{path}: not a whole safetensors file ({error}); it may be cut off: copy or download it again")
        ) from None


def _read_document(file: Any, path: Path) -> ModelDocument:
    text = (file.metadata() or {}).get(KEY)
    if text is None:
        raise ModelFileError(f"{path}: a safetensors file, but not of BottleGAN; give one that `bottlegan train` wrote")
    if len(text) > MAX_TEXT:
        raise ModelFileError(f"{path}: its document has {len(text)} characters, at most {MAX_TEXT} are read")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(_one_line(f"{path}: its document is not JSON ({error}); save the model again")) from None
    return _check_document(values, path)


def _check_document(values: Any, path: Path) -> ModelDocument:
    """Return the document, with every key checked and every size that a model is built with bounded."""
    # Before all else, because a newer document may have any other keys.
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
        raise ModelFileError(_one_line(str(error))) from None
    except InputError as error:
        raise ModelFileError(_one_line(f"{path}: {error}")) from None
    config, pairs = checked.model, checked.model.paradigm == "many-one-one"
    bounds = {
        "format": (checked.format, FORMAT, FORMAT),
        "number of styles": (len(checked.styles), 0, MAX_PAIRS if pairs else MAX_STYLES),
        "encoder": (checked.encoder, 0, 1024 if config.paradigm == "many-one-many" else 0),
        "model.code_size": (config.code_size, 1, 4096),
        "model.generator.width": (config.generator.width, 1, 4096),
        "model.generator.depth": (config.generator.depth, 0, 16),
        "model.generator.mapping": (config.generator.mapping, 0, 4096),
    }
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
        if not all(0 <= value <= 2 * BLACK for value in values):
            raise ModelFileError(f"{path}: `reference.{key}` must be optical densities from 0 to 11, got {values}")


def _check_layout(checked: ModelDocument, layout: Mapping[str, tuple[str, tuple[int, ...]]], path: Path) -> StyleModel:
    """Return a model without memory, whose tensors are those of `layout`, names to dtypes and shapes."""
    rows = layout.get("codes.table", ("", ()))[1]
    if len(rows) == 2 and rows[0] != len(checked.styles):
        raise ModelFileError(f"{path}: {len(checked.styles)} style names for {rows[0]} codes; save the model again")
    # Not drawn without memory: for that, torch would import all of its compiler.
    codes = StyleCodes([], checked.model.code_size, torch.Generator())
    with torch.device("meta"):
        codes.names = list(checked.styles)
        codes.table = nn.Parameter(torch.empty(len(checked.styles), checked.model.code_size))
        model = PARADIGMS[checked.model.paradigm](checked.model, codes)
        if isinstance(model, BottleGAN) and checked.encoder:
            model.encoder = StyleEncoder(torch.empty(2, 3), checked.encoder)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if missing := sorted(wanted.keys() - layout.keys()):
        raise ModelFileError(f"{path}: tensor `{missing[0]}` is missing; save the model again")
    if extra := sorted(layout.keys() - wanted.keys()):
        raise ModelFileError(
            _one_line(f"{path}: unexpected tensor `{extra[0][:80]}`; a {checked.model.paradigm} model has none")
        )
    for name, (dtype, shape) in layout.items():
        if dtype != "torch.float32":
            raise ModelFileError(f"{path}: tensor `{name}` is {dtype}, it must be torch.float32; convert it")
        if shape != wanted[name]:
            raise ModelFileError(f"{path}: tensor `{name}` has shape {shape}, expected {wanted[name]}; save it again")
    return model


def _check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ModelFileError(f"{path}: tensor `{name}` holds NaN or infinity; train the model again")


def _check_encoder(model: StyleModel, path: Path) -> None:
    if encoder_width(model) and not bool(torch.linalg.cond(model.get_buffer("encoder.basis")) < MAX_CONDITION):
        raise ModelFileError(f"{path}: the two stains of its encoder are one; train the model again")


def _dtype(code: str) -> str:
    """Return torch's name of a safetensors data type where we take it, and the code itself elsewhere."""
    return "torch.float32" if code == "F32" else code


def _short(value: int) -> str:
    """Return an integer without the thousands of digits that it may have."""
    return str(value) if abs(value) < 10**9 else f"a number of {math.floor(math.log10(abs(value))) + 1} digits"


def _one_line(text: str) -> str:
    """Return text that a file had a hand in, fit for a terminal: one line, no control characters, not endless."""
    return "".join(character if character.isprintable() else "?" for character in text)[:600]
