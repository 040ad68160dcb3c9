"""The page of the public Python interface, from the objects themselves."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from pages.text import describe_fields, make_cell, make_code, make_table, render_docstring


class Stable(NamedTuple):
    """Names of a module that will not change without notice."""

    text: str
    names: tuple[str, ...] = ()
    """Those of `__all__`, if none are given."""


MODULES = {
    "bottlegan": Stable("What most programs need."),
    "bottlegan.normalize.transforms": Stable(
        "Layers for PyTorch pipelines.", ("Normalize", "Restain", "RandomRestain")
    ),
    "bottlegan.normalize.adapters": Stable("Transforms for MONAI (dictionaries) and Albumentations (arrays)."),
    "bottlegan.normalize.choice": Stable("Which map an image, folder or slide gets.", ("MapChoice", "RefusedError")),
    "bottlegan.normalize.slides.one": Stable(
        "One slide, as the command `bottlegan normalize` maps it.", ("map_slide", "SlideOptions", "SlideResult")
    ),
    "bottlegan.onboarding.verdict": Stable("What a fit says of itself.", ("Verdict", "StyleDiagnosis")),
}

Node = TypeVar("Node", bound=ast.AST)


def make_page() -> str:
    """Return the page."""
    parts = [f"# Python\n\n{_INTRODUCTION}\n\n"]
    for module, stable in MODULES.items():
        parts.append(f"## {module}\n\n{stable.text}\n\n")
        parts += [_render(f"{module}.{name}", thing) for name, thing in list_names(module)]
    return "".join(parts)


_INTRODUCTION = """The public names, made from the code. Images are RGB levels `(H, W, 3)` of uint8 at the edges,
and float tensors `(N, 3, H, W)` in [0, 1] inside. Everything else is listed in [Modules](modules/index.md), and may
change."""


def list_names(module: str) -> Iterator[tuple[str, Any]]:
    """Yield the stable names of a module, and what they stand for."""
    loaded = import_module(module)
    for name in MODULES[module].names or loaded.__all__:
        yield name, getattr(loaded, name)


def _render(path: str, thing: Any) -> str:
    plain = path.replace("__", r"\_\_")  # not bold
    heading = f"### {plain}\n\n"
    if inspect.isclass(thing):
        return heading + _render_class(thing)
    if callable(thing):
        return heading + _render_callable(thing.__name__, thing)
    return heading + f"`{thing!r}`\n\n"


def _render_class(cls: type) -> str:
    text = ""
    if dataclasses.is_dataclass(cls):
        texts = describe_fields(cls)
        rows = [(make_code(each.name), make_cell(texts.get(each.name, ""))) for each in dataclasses.fields(cls)]
        text = render_docstring(cls.__doc__) + make_table(("field", "meaning"), rows)
    elif not issubclass(cls, Exception) and "__init__" in vars(cls):
        text = _make_signature(cls.__name__, cls.__init__) + render_docstring(cls.__doc__)
        text += render_docstring(cls.__init__.__doc__)
    else:
        text = render_docstring(cls.__doc__)
    members = {
        name: member
        for base in reversed(cls.__mro__)
        if base.__module__.startswith("bottlegan")
        for name, member in vars(base).items()
    }
    return text + "".join(_render_member(cls, name, member) for name, member in members.items())


def _render_member(cls: type, name: str, member: Any) -> str:
    if name.startswith("_") and name != "__call__":
        return ""
    heading = f"#### {cls.__name__}.{name} {{ #{cls.__module__}.{cls.__name__}.{name} }}\n\n"
    if isinstance(member, property):
        return heading + render_docstring(member.__doc__)
    if isinstance(member, classmethod | staticmethod):
        return heading + _render_callable(f"{cls.__name__}.{name}", getattr(cls, name))
    if inspect.isfunction(member):
        return heading + _render_callable(cls.__name__.lower() if name == "__call__" else name, member)
    return ""


def _render_callable(name: str, function: Any) -> str:
    return _make_signature(name, function) + render_docstring(function.__doc__)


def _make_signature(name: str, function: Any) -> str:
    """Return a signature as its source has it, with a line for each parameter if it is long."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    arguments = unquote(node.args)
    parts = [space(part) for part in split_arguments(ast.unparse(arguments)) if part not in {"self", "cls"}]
    returns = "" if node.returns is None else f" -> {ast.unparse(unquote(node.returns))}".replace(" -> None", "")
    text = f"{name}({', '.join(parts)}){returns}"
    if len(text) > 100:
        text = f"{name}(\n    " + ",\n    ".join(parts) + f",\n){returns}"
    return f"```python\n{text}\n```\n\n"


def unquote(tree: Node) -> Node:
    """Return a tree without the quotes around types that are imported for type checkers only."""

    class Unquote(ast.NodeTransformer):
        def visit_arg(self, node: ast.arg) -> ast.arg:
            node.annotation = None if node.annotation is None else unquote(node.annotation)
            return node

    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        return ast.parse(tree.value, mode="eval").body  # type: ignore[return-value]
    return Unquote().visit(tree)


def space(argument: str) -> str:
    """Return an argument with a type as everybody writes it: with spaces around the default's sign."""
    typed, sign, default = argument.rpartition("=")
    return f"{typed} = {default}" if sign and ":" in typed else argument


def split_arguments(text: str) -> list[str]:
    """Return the arguments of a signature, which are divided by those commas that no bracket holds."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]
