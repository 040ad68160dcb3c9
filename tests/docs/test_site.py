"""The documentation site: it builds strictly, needs no internet, and its reference is complete."""

import dataclasses
import html
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import click
import pytest
import typer

import bottlegan
from bottlegan.cli.main import app
from bottlegan.core.config import to_values
from bottlegan.demo.run import DemoConfig
from bottlegan.federated.client.holdings import LabConfig
from bottlegan.federated.flower.server_app import ServerConfig
from bottlegan.federated.simulation import SimulationConfig
from bottlegan.training.gan import TrainConfig
from bottlegan.training.prior import PriorConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="MkDocs is not installed; run `pip install 'bottlegan[docs]'`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    # Only the package's path, and nothing that would let the build reach the internet unnoticed.
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class Parts(HTMLParser):
    """What a page loads, and the text that it shows."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.text: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in {"script", "img", "iframe", "source", "video"} and given.get("src"):
            self.loads.append(str(given["src"]))
        if tag == "link" and given.get("rel") not in {"prev", "next", "canonical"}:
            self.loads.append(str(given["href"]))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read_text(page: Path) -> str:
    return "".join(Parts(page).text)


def test_pages_load_nothing_from_elsewhere_and_nothing_that_is_not_there(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        if page.name == "404.html":
            continue  # its links begin at the root of a server
        for load in Parts(page).loads:
            assert not re.match(r"(https?:)?//", load), f"{page}: loads {load}"
            assert load.startswith("data:") or (page.parent / load.split("?")[0]).exists(), f"{page}: {load} is missing"
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"url\(['\"]?(https?:)?//", styles)
    assert (site / "search" / "search_index.js").is_file()  # needed for searching from a folder


def list_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from list_commands(child, f"{path} {name}")
    else:
        yield path, command


def test_every_command_and_option_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    sections = {
        html.unescape(re.sub("<[^>]*>", "", part.split("</h2>")[0])).removesuffix("¶"): part
        for part in re.split(r"<h2[^>]*>", page)[1:]
    }
    commands = [found for found in list_commands(typer.main.get_command(app), "bottlegan") if not found[1].hidden]
    assert [path for path, _ in commands] == list(sections)
    for path, command in commands:
        for parameter in command.params:
            if not getattr(parameter, "hidden", False):
                shown = parameter.opts if isinstance(parameter, click.Option) else [parameter.human_readable_name]
                for name in shown:
                    assert f"<code>{name}</code>" in sections[path], f"{path} {name}"


def flatten(values: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def test_every_toml_key_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "settings.html").read_text(encoding="utf-8")
    for config in (SimulationConfig(), TrainConfig(), PriorConfig(), DemoConfig()):
        for key in flatten(to_values(config)):
            assert f"<code>{key}</code>" in page, f"{type(config).__name__} {key}"
    for config_class, prefix in ((LabConfig, ""), (ServerConfig, "server.")):
        for field in dataclasses.fields(config_class):
            assert f"<code>{prefix}{field.name}" in page, field.name  # a table has keys of its own


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    text = read_text(site / "reference" / "python.html")
    for module in ("bottlegan", "bottlegan.normalize.adapters"):
        for name in import_module(module).__all__:
            assert f"{module}.{name}" in text
    for method in ("fit", "load", "save", "restain", "uncertainty", "like", "to_cube"):
        assert f"Normalizer.{method}" in text
    assert "BottleGAN.load" in text
    assert bottlegan.__version__ in text


def test_every_module_and_example_has_its_page(site: Path) -> None:
    for file in (ROOT / "src" / "bottlegan").iterdir():
        if (file / "__init__.py").is_file() or (file.suffix == ".py" and file.stem != "__init__"):
            assert (site / "reference" / "modules" / f"{file.stem}.html").is_file()
    index = read_text(site / "examples" / "index.html")
    for file in [*(ROOT / "examples").glob("*.py"), *(ROOT / "examples").glob("*.ipynb")]:
        assert f"examples/{file.name}" in index
        assert (site / "examples" / f"{file.stem}.html").is_file()
