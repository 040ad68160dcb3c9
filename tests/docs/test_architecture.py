"""The architecture page names files and functions; all of them exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "bottlegan"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
STEPS = re.findall(r"`([\w/]+\.py)`(?:: | \| )`([\w.]+)`", PAGE)


@cache
def names(path: Path) -> frozenset[str]:
    """The functions, classes, methods and variables that a file defines."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name, body=body):
                found |= {name, *(f"{name}.{part.name}" for part in body if isinstance(part, ast.FunctionDef))}
            case ast.FunctionDef(name=name):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return frozenset(found)


@pytest.mark.parametrize(("file", "name"), STEPS)
def test_every_step_is_there(file: str, name: str) -> None:
    assert name in names(SOURCE / file)


def test_every_step_is_read() -> None:
    # A step that the pattern above does not see would not be checked.
    assert (
        len(STEPS)
        == len(re.findall(r"[\w/]+\.py`(?:: | \| )`", PAGE))
        == PAGE.count(".py`: `") + PAGE.count(".py` | `")
    )
    assert len(STEPS) >= 30


def test_every_room_is_listed() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and not path.name.startswith("__")}
    table = PAGE.partition("## Rooms")[2].partition("## Walk")[0]
    assert rooms <= set(re.findall(r"`(\w+)`", table))
