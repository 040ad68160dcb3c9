"""A page for each package, with all that its modules define, from the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

from pages.text import first_sentence, list_described, make_cell, make_code, make_table


def make_pages(source: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each page."""
    rooms = []
    for room in sorted(source.iterdir()):
        if (room / "__init__.py").is_file() or (room.suffix == ".py" and room.stem != "__init__"):
            files = sorted(room.rglob("*.py")) if room.is_dir() else [room]
            opening = room / "__init__.py" if room.is_dir() else room
            text = first_sentence(ast.get_docstring(_parse(opening)))
            rooms.append((f"[bottlegan.{room.stem}]({room.stem}.md)", text))
            parts = [_render_module(file, source.parent) for file in files]
            yield f"reference/modules/{room.stem}.md", f"# bottlegan.{room.stem}\n\n{text}\n\n{''.join(parts)}"
    yield "reference/modules/index.md", f"# Modules\n\n{_INTRODUCTION}\n\n{make_table(('package', 'holds'), rooms)}"


_INTRODUCTION = """Everything that the package defines, made from its source. Only what is listed under
[Python](../python.md) is stable. A package imports only packages below it, which a contract checks."""


def _render_module(file: Path, root: Path) -> str:
    tree = _parse(file)
    name = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    rows = [(make_code(entry), text) for entry, text in _list_entries(tree)]
    if not rows:
        return ""
    opening = first_sentence(ast.get_docstring(tree))
    return f"## {name}\n\n{opening}\n\n" + make_table(("name", "what it is"), rows)


def _list_entries(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the public names of a module with what is said of each: constants, then classes and functions."""
    for name, text in list_described(tree):
        if not name.startswith("_") and text:
            yield name, make_cell(text)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, first_sentence(ast.get_docstring(node))
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield f"{node.name}({_list_arguments(node.args)})", first_sentence(ast.get_docstring(node))


def _list_arguments(arguments: ast.arguments) -> str:
    names = [each.arg for each in arguments.posonlyargs + arguments.args]
    if arguments.vararg or arguments.kwonlyargs:
        names.append(f"*{arguments.vararg.arg if arguments.vararg else ''}")
    names += [each.arg for each in arguments.kwonlyargs]
    return ", ".join(names + ([f"**{arguments.kwarg.arg}"] if arguments.kwarg else []))


def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))
