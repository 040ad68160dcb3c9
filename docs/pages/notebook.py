"""Runs a notebook without Jupyter and keeps what its cells show: `python docs/pages/notebook.py FILE`."""

import ast
import base64
import contextlib
import io
import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image


def run_notebook(path: Path) -> list[list[dict[str, Any]]]:
    """Run all cells of code, in a folder that holds the pictures beside the notebook, and return what each shows."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    pictures = list(path.parent.resolve().glob("*.jpg"))
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        for picture in pictures:
            shutil.copy(picture, folder)
        return [_run("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]


def _run(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell; as in Jupyter, what it prints is shown, and the value of its last line."""
    tree = ast.parse(source)
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)  # noqa: S102 - the repository's own notebook
        value = None if last is None else eval(compile(last, "cell", "eval"), names)  # noqa: S307
    shown = []
    if text := printed.getvalue():
        shown.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if isinstance(value, Image.Image):
        data = {"image/jpeg": _encode(value), "text/plain": [f"<picture {value.width} x {value.height}>"]}
        shown.append({"output_type": "display_data", "data": data, "metadata": {}})
    elif value is not None:
        shown.append({"output_type": "display_data", "data": {"text/plain": [repr(value)]}, "metadata": {}})
    return shown


def _encode(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=80)
    return base64.b64encode(buffer.getvalue()).decode()


def main(path: Path) -> None:
    """Run a notebook and write it back with what its cells show."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, outputs) in enumerate(zip(code, run_notebook(path), strict=True), start=1):
        cell["outputs"], cell["execution_count"] = outputs, number
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
