"""The page of all keys of TOML files, from the classes that read them."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args, get_type_hints

from bottlegan.core.config import to_values
from bottlegan.demo.run import DemoConfig
from bottlegan.federated.client.holdings import LabConfig
from bottlegan.federated.flower.server_app import ServerConfig
from bottlegan.federated.simulation import SimulationConfig
from bottlegan.training.gan import TrainConfig
from bottlegan.training.prior import PriorConfig
from pages.text import describe_fields, make_cell, make_code, make_table


class Document(NamedTuple):
    """A kind of TOML file."""

    title: str
    text: str
    read_by: type
    prefix: str = ""


DOCUMENTS = (
    Document(
        "A federation",
        "`bottlegan simulate FILE` and `bottlegan deploy init --config FILE`. Only simulations read `labs`.",
        SimulationConfig,
    ),
    Document("A lab", "`lab.toml` in a lab's own folder. It never leaves the lab.", LabConfig),
    Document(
        "A deployed server",
        "`server/run.sh --run-config 'KEY=VALUE ...'`, beside the keys of a federation.",
        ServerConfig,
        "server.",
    ),
    Document("Training a GAN", "`bottlegan train --config FILE`.", TrainConfig),
    Document("Training a prior", "`bottlegan train-prior --config FILE`.", PriorConfig),
    Document("The demo", "`bottlegan demo --config FILE`.", DemoConfig),
)


class Key(NamedTuple):
    """A key that a file may hold."""

    name: str
    kind: str
    default: str
    text: str


def make_page() -> str:
    """Return the page."""
    parts = [
        f"## {each.title}\n\n{each.text}\n\n" + make_table(("key", "type", "default", "meaning"), list(_rows(each)))
        for each in DOCUMENTS
    ]
    return f"# Settings\n\n{_INTRODUCTION}\n\n" + "".join(parts)


_INTRODUCTION = """Every key of every TOML file, made from the classes that read them. A key that is left out has
its default; one that does not exist is an error that names it. `a.b.c` is the key `c` of the table `[a.b]`."""


def list_keys(cls: type, prefix: str = "") -> Iterator[Key]:
    """Yield the keys of a document and of the tables in it."""
    hints, texts = get_type_hints(cls), describe_fields(cls)
    for field in dataclasses.fields(cls):
        name, hint = f"{prefix}{field.name}", hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from list_keys(hint, f"{name}.")
        else:
            yield Key(name, _name_type(hint), _write_default(field), texts.get(field.name, ""))


def _rows(document: Document) -> Iterator[tuple[str, str, str, str]]:
    for key in list_keys(document.read_by, document.prefix):
        yield make_code(key.name), make_cell(key.kind), key.default, make_cell(key.text)


def _name_type(hint: Any) -> str:
    """Return the type as somebody who writes TOML would call it."""
    if hint is type(None):
        return ""
    origin, parts = getattr(hint, "__origin__", None), get_args(hint)
    if origin is tuple:
        return f"list of {_name_type(parts[0])}s"
    if origin is dict:
        return "table"
    if parts and all(isinstance(part, str) for part in parts):
        return " or ".join(f'`"{part}"`' for part in parts)
    if parts:
        return " or ".join(dict.fromkeys(name for name in map(_name_type, parts) if name))
    names = {"str": "text", "int": "whole number", "float": "number", "bool": "`true` or `false`", "Path": "path"}
    return names.get(getattr(hint, "__name__", ""), getattr(hint, "__name__", str(hint)))


def _write_default(field: "dataclasses.Field[Any]") -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "must be given"
    default = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]
    if default is None:
        return ""
    return make_code(_write_value(default))


def _write_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_write_value, value))}]"
    if isinstance(value, int | float):
        return repr(value)
    if dataclasses.is_dataclass(value):
        return str(to_values(value))
    return f'"{value}"'
