"""Documents from outside, checked: frozen dataclasses to and from TOML and JSON.

A document is a dataclass made with `@document`. Reading one checks every key: an unknown, missing or mistyped one is a
`ConfigError` that names the file, the key and what was expected.
"""

import dataclasses
import json
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform

import tomli_w
from pydantic import ConfigDict, TypeAdapter, ValidationError

from bottlegan.core.errors import ConfigError, MissingError

Document = TypeVar("Document")
TOO_DEEP = "is nested far too deeply; no document of ours has more than a few levels"
STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def document(cls: type[Document]) -> type[Document]:
    """Make `cls` a frozen, keyword-only dataclass whose documents may hold its fields and nothing else."""
    cls.__pydantic_config__ = STRICT  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def parse(cls: type[Document], values: object, source: str) -> Document:
    """Return `values`, made of what JSON and TOML can hold, as a `cls`; `source` is named in errors."""
    try:
        # Through JSON, because only there does strict checking read an array as a tuple and a string as a path.
        return _adapt(cls).validate_json(json.dumps(values, allow_nan=False))
    except ValidationError as error:
        raise ConfigError(f"{source}: {_explain(error)}") from None
    except RecursionError:
        raise ConfigError(f"{source}: {TOO_DEEP}") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{source}: {error}; use numbers, strings, arrays and tables only") from None


def load(cls: type[Document], path: Path) -> Document:
    """Read a `cls` from a `.toml` or `.json` file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MissingError(f"{path}: there is no such file; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({error}); check the file") from None
    try:
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{path}: {TOO_DEEP}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid {'JSON' if path.suffix == '.json' else 'TOML'} ({error})") from None
    return parse(cls, values, str(path))


def to_values(config: object) -> dict[str, Any]:
    """Return a document as dictionaries, lists and scalars; fields that are None are left out, as TOML has no null."""
    values: dict[str, Any] = _adapt(type(config)).dump_python(config, mode="json", exclude_none=True)
    return values


def to_toml(config: object) -> str:
    """Return a document as TOML."""
    return tomli_w.dumps(to_values(config))


def to_json(config: object) -> str:
    """Return a document as JSON, indented, with a final newline."""
    return json.dumps(to_values(config), indent=2, allow_nan=False) + "\n"


_adapt: Callable[[object], TypeAdapter[Any]] = cache(TypeAdapter)
"""Makes an adapter once: that takes longer than reading a document with it."""


def _explain(error: ValidationError) -> str:
    """Return the first of pydantic's findings in one line, with how many more there are."""
    found = error.errors(include_url=False)
    first = found[0]
    key = ".".join(str(part) for part in first["loc"]) or "document"
    match first["type"]:
        case "unexpected_keyword_argument" | "dataclass_exact_type" | "extra_forbidden":
            text = f"unknown key `{key}`; remove it or correct its spelling"
        case "missing":
            text = f"key `{key}` is missing; add it"
        case "value_error":
            text = str(first["ctx"]["error"])
        case _:
            text = f"key `{key}`: {first['msg'][0].lower()}{first['msg'][1:]}, got {first['input']!r}"
    return text + (f" (and {len(found) - 1} more)" if len(found) > 1 else "")
