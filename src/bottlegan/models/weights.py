"""The weights of a model as plain arrays, read and checked without torch.

A file may come from anywhere, so nothing in it is trusted. First the document is checked and its sizes are bounded.
Then the names and shapes of the tensors are compared with those that the document requires. Only then are numbers read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bottlegan.core.config import to_values
from bottlegan.core.errors import InputError, MissingError, ModelFileError
from bottlegan.core.files import replacing
from bottlegan.core.stamp import BLANK, stamp
from bottlegan.core.stamp import KEY as CHECKSUM
from bottlegan.models.document import (
    KEY,
    NETWORK_KEY,
    ModelDocument,
    check_document,
    check_name,
    check_whole,
    one_line,
    read_text,
)
from bottlegan.models.layout import list_shapes
from bottlegan.stain.affine import StyleMaps

Floats = NDArray[np.float32]
Layout = Mapping[str, tuple[str, tuple[int, ...]]]
"""Names of tensors with their types and shapes."""

ENCODERS = "encoders."
"""Prefix of the names of the encoders' tensors, which files hold in half precision: it changes no image visibly."""
MAX_CONDITION = 1e6
"""Largest condition number of an encoder's stains; above it, they cannot be distinguished."""


@dataclass(frozen=True)
class ModelWeights:
    """The content of a model file."""

    document: ModelDocument
    arrays: Mapping[str, Floats]
    """The tensors by their names in torch."""

    def part(self, prefix: str) -> dict[str, Floats]:
        """Return the arrays whose names begin with `prefix`, by the rest of their names."""
        return {name[len(prefix) :]: array for name, array in self.arrays.items() if name.startswith(prefix)}

    @property
    def glass(self) -> Floats:
        """(3,) density of bare glass in the reference stain."""
        return np.maximum(self.arrays["reference.maps"][1, 3], np.float32(0))

    def code(self, style: str) -> Floats:
        """Return the code (K,) of a style."""
        names = self.document.styles
        if style not in names:
            known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise InputError(f"there is no style called {style}; known are: {known or 'none'}")
        return self.arrays["codes.table"][names.index(style)]

    def with_styles(self, codes: Mapping[str, Floats]) -> "ModelWeights":
        """Return the same weights with these styles instead of the present ones."""
        for name in codes:
            check_name(name)
        table = np.array(list(codes.values()), np.float32).reshape(len(codes), self.document.model.code_size)
        document = replace(self.document, styles=tuple(codes))
        if document.model.paradigm == "many-one-one":
            document = replace(document, model=replace(document.model, code_size=len(codes)))
            return ModelWeights(document, self._choose_generators(table.argmax(axis=1).tolist()))
        return ModelWeights(document, {**self.arrays, "codes.table": table})

    def _choose_generators(self, rows: list[int]) -> dict[str, Floats]:
        """Return the arrays of a model with a pair of generators per style, keeping only these pairs."""
        ways = ("normalizers", "restainers")
        kept = {name: array for name, array in self.arrays.items() if not name.startswith(ways)}
        for after, before in enumerate(rows):
            for way in ways:
                part = self.part(f"{way}.{before}.")
                kept |= {f"{way}.{after}.{name}": array for name, array in part.items()}
        return {**kept, "codes.table": np.eye(len(rows), dtype=np.float32)}

    def with_reference(self, stains: Floats, maps: StyleMaps) -> "ModelWeights":
        """Return the same weights for another reference stain: its strong stains (2, 3), and its maps as a style."""
        kept = np.stack([np.concatenate([way.matrix[0], way.bias]) for way in maps])
        arrays = {
            **self.arrays,
            "reference.stains": stains.astype(np.float32),
            "reference.maps": kept.astype(np.float32),
        }
        return ModelWeights(replace(self.document, reference=None), arrays)

    @property
    def encoders(self) -> tuple[dict[str, Floats], ...]:
        """The weights of each encoder, by their names."""
        return tuple(self.part(f"{ENCODERS}{index}.") for index in range(len(self.document.encoders)))

    def without_encoders(self) -> "ModelWeights":
        """Return the same weights without the encoders."""
        kept = {name: array for name, array in self.arrays.items() if not name.startswith(ENCODERS)}
        return ModelWeights(replace(self.document, encoders=()), kept)


def read_weights(path: Path) -> ModelWeights:
    """Read the weights of a model."""
    with open_weights(path) as file:
        text = (file.metadata() or {}).get(KEY)
        document = read_text(text, path)
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
        check_layout(
            document, {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}, path
        )
        # Copied, because the array may be a view of the file, which others may change.
        arrays = {name: np.array(file.get_tensor(name), np.float32) for name in slices}
    check_finite(arrays, path)
    check_whole(str(text), path)
    model = ModelWeights(document, arrays)
    for encoder in model.encoders:
        if not np.linalg.cond(encoder["basis"]) < MAX_CONDITION:
            raise ModelFileError(f"{path}: the two stains of its encoder are one; train the model again")
    return model


def write_weights(model: ModelWeights, path: Path) -> None:
    """Write the weights of a model to `path`, whole or not at all. The same weights give the same bytes."""
    values = to_values(model.document)
    # A file that could not be read again must not be written.
    check_document(values, path)
    arrays = {name: np.ascontiguousarray(array) for name, array in model.arrays.items()}
    arrays |= {name: array.astype(np.float16) for name, array in arrays.items() if name.startswith(ENCODERS)}
    check_layout(model.document, {name: (name_kind(array), array.shape) for name, array in arrays.items()}, path)
    check_finite(arrays, path)
    with replacing(path, durable=True) as temporary:
        text = json.dumps({CHECKSUM: BLANK, **values}, sort_keys=True, allow_nan=False)
        temporary.write_bytes(stamp(save(arrays, {KEY: text})))


def read_document(path: Path) -> ModelDocument:
    """Read the document of a model file, checked, without its tensors."""
    with open_weights(path) as file:
        return read_text((file.metadata() or {}).get(KEY), path)


def is_network(path: Path) -> bool:
    """Return whether a file holds a network of phase 2, rather than a model of styles."""
    with open_weights(path) as file:
        return NETWORK_KEY in (file.metadata() or {})


def open_weights(path: Path) -> Any:
    """Open a safetensors file. This checks its header against the file's length."""
    if not path.exists():
        raise MissingError(f"{path}: there is no such model file; check the path")
    if not path.is_file():
        raise ModelFileError(f"{path}: is not a file; give a .safetensors file")
    try:
        return safe_open(path, framework="np")
    except (SafetensorError, OSError) as error:
        raise ModelFileError(
            one_line(f"{path}: not a whole safetensors file ({error}); it may be cut off: copy or download it again")
        ) from None


def check_layout(document: ModelDocument, layout: Layout, path: Path) -> None:
    """Refuse tensors other than those that the document of a model file requires."""
    rows = layout.get("codes.table", ("", ()))[1]
    if len(rows) == 2 and rows[0] != len(document.styles):
        raise ModelFileError(f"{path}: {len(document.styles)} style names for {rows[0]} codes; save the model again")
    wanted = list_shapes(document)
    if missing := sorted(wanted.keys() - layout.keys()):
        raise ModelFileError(f"{path}: tensor `{missing[0]}` is missing; save the model again")
    if extra := sorted(layout.keys() - wanted.keys()):
        raise ModelFileError(
            one_line(f"{path}: unexpected tensor `{extra[0][:80]}`; a {document.model.paradigm} model has none")
        )
    for name, (kind, shape) in layout.items():
        if kind != (expected := find_kind(name)):
            raise ModelFileError(f"{path}: tensor `{name}` is {kind}, it must be {expected}; save it again")
        if shape != wanted[name]:
            raise ModelFileError(f"{path}: tensor `{name}` has shape {shape}, expected {wanted[name]}; save it again")


def round_encoders(arrays: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return arrays by name, those of encoders rounded as files hold them, so that a saved model is the same model."""
    return {
        name: array.astype(np.float16).astype(array.dtype) if name.startswith(ENCODERS) else array
        for name, array in arrays.items()
    }


def find_kind(name: str) -> str:
    """Return the type that the tensor `name` has in a file."""
    return "F16" if name.startswith(ENCODERS) else "F32"


def name_kind(array: NDArray[Any]) -> str:
    """Return the type of an array as files name it."""
    return {"float32": "F32", "float16": "F16"}.get(str(array.dtype), str(array.dtype))


def check_finite(arrays: Mapping[str, Floats], path: Path) -> None:
    """Refuse weights that are not finite."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ModelFileError(f"{path}: tensor `{name}` holds NaN or infinity; train the model again")
