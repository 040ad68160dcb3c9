"""Markdown from docstrings and source code."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence

SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$")
ITEM = re.compile(r"^(\*{0,2}\w+)(?: \([^)]*\))?: (.*)$")


def make_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def make_cell(text: str) -> str:
    """Return text as it may stand in a table: in one line, and with nothing that ends a cell or opens a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def make_code(text: str) -> str:
    """Return text as code that may stand in a table."""
    return f"`{' '.join(text.split())}`".replace("|", "\\|")


def first_sentence(text: str | None) -> str:
    """Return the first paragraph of a docstring, in one line."""
    return make_cell(inspect.cleandoc(text or "").split("\n\n")[0])


def render_docstring(text: str | None) -> str:
    """Return a Google docstring as Markdown: paragraphs, then a list for each section."""
    out = []
    for block in inspect.cleandoc(text or "").split("\n\n"):
        heading, *body = block.split("\n")
        if SECTION.match(heading):
            out += [f"**{heading.removesuffix(':')}**", "\n".join(_list_items(textwrap.dedent("\n".join(body))))]
        else:
            out.append(block)
    return "\n\n".join(out).replace("<", "&lt;") + "\n\n"


def _list_items(body: str) -> Iterator[str]:
    """Yield a line for each item of a section; what it goes on with is indented."""
    items: list[str] = []
    for line in body.split("\n"):
        if line.startswith(" ") and items:
            items[-1] += f" {line.strip()}"
        else:
            items.append(line)
    for item in items:
        named = ITEM.match(item)
        yield f"- `{named[1]}`: {named[2]}" if named else f"- {item}"


def describe_fields(cls: type) -> dict[str, str]:
    """Return what stands below each field of a class, and of those that it comes from."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("bottlegan"):
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            found |= dict(list_described(tree))
    return found


def list_described(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names that a class or a module assigns, and the text below each."""
    body = getattr(tree, "body", [])
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign | ast.Assign):
            target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            if isinstance(target, ast.Name):
                yield target.id, _read_text(following)


def _read_text(statement: ast.stmt | None) -> str:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
    return ""
