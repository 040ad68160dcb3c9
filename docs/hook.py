"""What MkDocs calls while it builds the site: adds the pages and figures that are made from the code."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

from pages import commands, examples, figures, modules, python_names, settings

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated files, and every page to the navigation."""
    for path, content in generate():
        files.append(File.generated(config, path, content=content))
    if config.nav is not None:
        complete_navigation(config.nav, [file.src_uri for file in files.documentation_pages()])
    return files


def generate() -> Iterator[tuple[str, str | bytes]]:
    """Yield the path and the content of each generated file."""
    yield "changelog.md", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    yield "reference/commands.md", commands.make_page()
    yield "reference/settings.md", settings.make_page()
    yield "reference/python.md", python_names.make_page()
    yield from modules.make_pages(ROOT / "src" / "bottlegan")
    yield from examples.make_pages(ROOT / "examples")
    yield from figures.draw_all()


def complete_navigation(nav: list[Any], pages: list[str]) -> None:
    """Put examples and modules where they belong, and pages that nobody listed under "More"."""
    listed = set(list_pages(nav))
    rest = [page for page in pages if page not in listed]
    for prefix, section in {"examples/": ["Examples"], "reference/modules/": ["Reference", "Modules"]}.items():
        find_section(nav, section).extend(page for page in rest if page.startswith(prefix))
        rest = [page for page in rest if not page.startswith(prefix)]
    if rest:
        nav.append({"More": rest})


def list_pages(nav: Any) -> Iterator[str]:
    """Yield the pages that a navigation lists."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from list_pages(part)


def find_section(nav: list[Any], names: list[str]) -> list[Any]:
    """Return the entries of a section, which is named by the titles on the way to it."""
    for name in names:
        nav = next(part[name] for part in nav if isinstance(part, dict) and name in part)
    return nav
