"""Checked documents: frozen dataclasses, read from and written to TOML and JSON.

A document is a dataclass made with `@document`. Reading one checks every key. An unknown, missing or mistyped key
raises a `ConfigError` that names the file, the key and what was expected.
"""

import copy
import dataclasses
import json
import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform

import tomli_w
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from bottlegan.core.errors import ConfigError
from bottlegan.core.files import check_readable

Document = TypeVar("Document")
TOO_DEEP = "is nested too deeply; BottleGAN's documents have only a few levels"
STRICT = ConfigDict(extra="forbid", strict=True)

MOST = 10**9
Count = Annotated[int, Field(ge=1, le=MOST)]
"""A number of things, at least one."""
Amount = Annotated[int, Field(ge=0, le=MOST)]
"""A number of things, possibly zero."""
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def document(cls: type[Document]) -> type[Document]:
    """Make `cls` a frozen, keyword-only dataclass. Its documents may hold its fields and nothing else."""
    cls.__pydantic_config__ = STRICT  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def parse(cls: type[Document], values: object, source: str) -> Document:
    """Return `values`, which must be representable in JSON and TOML, as a `cls`; errors name `source`."""
    try:
        # Through JSON, because strict checking accepts an array as a tuple and a string as a path only there.
        return _adapt(cls).validate_json(json.dumps(values, allow_nan=False))
    except ValidationError as error:
        raise ConfigError(f"{source}: {_explain(error)}") from None
    except RecursionError:
        raise ConfigError(f"{source}: {TOO_DEEP}") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{source}: {error}; use numbers, strings, arrays and tables only") from None


def load(cls: type[Document], path: Path) -> Document:
    """Read a `cls` from a `.toml` or `.json` file."""
    return parse(cls, read_values(path), str(path))


def read_values(path: Path) -> dict[str, Any]:
    """Return the content of a `.toml` or `.json` file, unchecked."""
    check_readable(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({error}); check the file") from None
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        values: dict[str, Any] = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{path}: {TOO_DEEP}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid {kind} ({error}); correct it") from None
    return values


def change(values: dict[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Return a copy of the values with changes applied. A change is `key=value`; `a.b` is the key `b` of the table `a`.

    A value is read as TOML. If it is not valid TOML, it is taken as text, so text needs no quotes.
    """
    changed = copy.deepcopy(values)
    for text in changes:
        key, equals, value = text.partition("=")
        *tables, last = key.strip().split(".")
        if not equals or not all([*tables, last]):
            raise ConfigError(f"--set {text}: is not key=value; write it as rate=0.001 or model.code_size=24")
        table = changed
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {text}: {name} is a value, not a table; check the key")
        table[last] = _read_value(value.strip())
    return changed


def _read_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def to_values(config: object) -> dict[str, Any]:
    """Return a document as dictionaries, lists and scalars. Fields that are None are left out: TOML has no null."""
    values: dict[str, Any] = _adapt(type(config)).dump_python(config, mode="json", exclude_none=True)
    return values


def to_toml(config: object) -> str:
    """Return a document as TOML."""
    return tomli_w.dumps(to_values(config))


def to_json(config: object) -> str:
    """Return a document as JSON, indented, with a final newline."""
    return json.dumps(to_values(config), indent=2, allow_nan=False) + "\n"


_adapt: Callable[[object], TypeAdapter[Any]] = cache(TypeAdapter)
"""Cached, because making an adapter takes longer than reading a document with it."""


def _explain(error: ValidationError) -> str:
    """Return pydantic's first complaint in one line, and how many more there are."""
    complaints = error.errors(include_url=False)
    first = complaints[0]
    key = ".".join(str(part) for part in first["loc"]) or "document"
    match first["type"]:
        case "unexpected_keyword_argument" | "dataclass_exact_type" | "extra_forbidden":
            text = f"unknown key `{key}`; remove it or correct its spelling"
        case "missing":
            text = f"key `{key}` is missing; add it"
        case "value_error":
            text = str(first["ctx"]["error"])
        case _:
            text = f"key `{key}`: {first['msg'][0].lower()}{first['msg'][1:]}, got {_shorten(repr(first['input']))}"
    return text + (f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else "")


def _shorten(text: str) -> str:
    """Return a value cut to fit into a line; it may be thousands of digits long, or a whole table."""
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
