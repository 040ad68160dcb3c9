"""A page for each example: what it says of itself, its code, and the pictures of the notebook."""

import ast
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pages.text import make_cell, make_table

PICTURES = {"image/jpeg": "jpg", "image/png": "png"}


def make_pages(folder: Path) -> Iterator[tuple[str, str | bytes]]:
    """Yield the path and the content of each page, of each picture, and of the page that lists them all."""
    rows = []
    for file in sorted([*folder.glob("*.py"), *folder.glob("*.ipynb")]):
        files = list(_render_notebook(file) if file.suffix == ".ipynb" else _render_script(file))
        yield from files
        title = str(files[0][1]).split("\n", 1)[0].removeprefix("# ")
        rows.append((f"[{make_cell(title)}]({file.stem}.md)", f"`examples/{file.name}`"))
    yield "examples/index.md", f"# Examples\n\n{_INTRODUCTION}\n\n{make_table(('example', 'file'), rows)}"


_INTRODUCTION = """Each is one file in `examples/` that runs as it is: `python examples/FILE`. None needs data of
your own: what an example needs, it draws. The tests run all of them."""


def _render_script(file: Path) -> Iterator[tuple[str, str | bytes]]:
    source = file.read_text(encoding="utf-8")
    title, _, text = (ast.get_docstring(ast.parse(source)) or file.stem).partition("\n")
    code = source.split('"""', 2)[2].strip()
    yield f"examples/{file.stem}.md", f"# {title.rstrip('.')}\n\n{text.strip()}\n\n```python\n{code}\n```\n"


def _render_notebook(file: Path) -> Iterator[tuple[str, str | bytes]]:
    parts: list[str] = []
    pictures: list[tuple[str, bytes]] = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            for kind, data in _list_shown(output):
                if kind == "text":
                    parts.append(f"```text\n{data.rstrip()}\n```")
                else:
                    name = f"{file.stem}-{len(pictures)}.{kind}"
                    pictures.append((f"examples/{name}", base64.b64decode(data)))
                    parts.append(f"![what the cell above shows]({name})")
    yield f"examples/{file.stem}.md", "\n\n".join(parts) + "\n"
    yield from pictures


def _list_shown(output: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a cell shows: its picture if there is one, else its text."""
    data = output.get("data", {})
    found = [(ending, "".join(data[kind])) for kind, ending in PICTURES.items() if kind in data]
    text = "".join(output.get("text", data.get("text/plain", "")))
    yield from found[:1] or ([("text", text)] if text else [])
