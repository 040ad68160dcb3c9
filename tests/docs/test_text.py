"""README and docs work as typed: all commands are understood, quick ones run, and so does all Python."""

import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import numpy as np
import pytest
import typer

from bottlegan.cli.main import app, main
from bottlegan.imaging.files import write_image
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.simulation.lab_folder import draw_lab, write_lab

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXT = {page: page.read_text(encoding="utf-8") for page in PAGES}
WORDS = re.compile(r"^[\w./-]+$")


def list_commands(page: Path) -> Iterator[str]:
    """The commands in the blocks of a page, and complete ones in its text, with an argument or an option."""
    for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", TEXT[page], re.DOTALL):
        joined = re.sub(r"\\\n\s*", " ", block)
        yield from (line.removeprefix("$ ").strip() for line in joined.splitlines() if "bottlegan " in line[:12])
    yield from re.findall(r"`(bottlegan [a-z-]+ [^`]*[^`.:])`", re.sub(r"```.*?```", "", TEXT[page], flags=re.DOTALL))


def split(command: str) -> list[str]:
    words = shlex.split(command, comments=True)
    return words[1 : words.index("|")] if "|" in words else words[1:]


COMMANDS = sorted({(page.relative_to(ROOT).as_posix(), command) for page in PAGES for command in list_commands(page)})


def find(words: list[str]) -> tuple[click.Command, list[str], str]:
    """The command that is meant, and its arguments."""
    command, path = typer.main.get_command(app), "bottlegan"
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        assert name in command.commands, f"{path} has no command {name}"
        command, path = command.commands[name], f"{path} {name}"
    return command, words, path


@pytest.mark.parametrize(("page", "text"), COMMANDS)
def test_every_command_is_understood(page: str, text: str) -> None:
    command, words, path = find(split(text))
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in {*options, "--help"}, f"{page}: {path} has no option {word}"
    # A sentence may speak of an option without all that the command needs; what is there must be right.
    with suppress(
        click.MissingParameter, click.BadOptionUsage, click.exceptions.Exit, click.exceptions.NoArgsIsHelpError
    ):
        command.make_context(path, list(words))


QUICK = {"normalize", "restain", "onboard", "lut", "export", "drift", "evaluate", "info", "synth"}
"""Commands that are run from the text, in a folder that has what the pages speak of. The others take minutes."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages speak of: labs, a slide, a model."""
    desk = tmp_path_factory.mktemp("desk")
    for number, name in enumerate(
        ("lab-1", "lab-3", "reference", "truth", "output", "normalized-1", "batches/2026-01")
    ):
        (desk / name).parent.mkdir(exist_ok=True)
        write_lab(desk / name, 1, 96, number, draw_lab(number))
    write_image(desk / "image.png", np.full((64, 64, 3), 200, np.uint8))
    model = Normalizer.fit(desk / "lab-3", name="lab-3", force=True)
    model.save(desk / "model.safetensors")
    return desk


def can_run(text: str, desk: Path) -> bool:
    """Whether a command is quick, and all it reads is on the desk."""
    words = split(text)
    reads = words[0] == "synth" or (len(words) > 1 and (desk / words[1]).exists())
    return words[0] in QUICK and WORDS.match("".join(words)) is not None and reads


def test_quick_commands_run_from_the_text(desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    for number, (page, text) in enumerate(COMMANDS):
        words = split(text)
        if not can_run(text, desk) or "slide" in text or "--exact" in words or "--onnx" in words:
            continue
        place = tmp_path / str(number)
        shutil.copytree(desk, place)
        monkeypatch.chdir(place)
        if words[0] == "synth":
            words += ["--size", "64", *(["--patches", "1"] if words[1] == "lab" else [])]
            for name in words[2:]:
                shutil.rmtree(name, ignore_errors=True)
        if words[0] in ("normalize", "onboard") and "--style" not in words:
            words.append("--force")
        if words[0] == "onboard" and "--model" in words:
            continue
        for target in ("model.safetensors",) if words[0] == "onboard" else ():
            Path(target).unlink()
        monkeypatch.setattr(sys, "argv", ["bottlegan", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, f"{page}: {text}"
        ran.append(text)
    assert len(ran) >= 6, ran


def test_packages_that_pages_install_have_their_extras() -> None:
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    )
    for text in TEXT.values():
        for names in re.findall(r"bottlegan\[([\w,]+)\]", text):
            assert set(names.split(",")) <= extras


def test_the_python_of_the_pages_runs(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="needs pip install 'bottlegan[export]'")
    from bottlegan.colormap.onnx import make_onnx, write_onnx  # noqa: PLC0415 - optional

    monkeypatch.chdir(desk)
    write_onnx(desk / "lab-3.onnx", make_onnx(Normalizer.load("model.safetensors").color_map().network, {}))
    blocks = [(page, code) for page in PAGES for code in re.findall(r"```python\n(.*?)```", TEXT[page], re.DOTALL)]
    assert blocks
    for page, code in blocks:
        if "network.safetensors" in code or "slide.tiff" in code:
            continue  # it takes a federation to train a network; tests/predict does so, and draws slides
        exec(compile(code, str(page), "exec"), {"__name__": "page"})  # noqa: S102 - it is our own text


def test_numbers_of_the_readme_are_measured() -> None:
    """Every number with a decimal point in a table of the README is in docs/results, with its page named nearby."""
    results = " ".join(text for page, text in TEXT.items() if "results" in page.parts)
    cells = [cell for line in TEXT[ROOT / "README.md"].splitlines() if line.startswith("|") for cell in line.split("|")]
    numbers = {number for cell in cells for number in re.findall(r"(?<![\w.])\d*\.\d+(?![\w.])", cell)}
    assert numbers
    assert not [number for number in numbers if not re.search(rf"(?<![\d.])0?{re.escape(number)}(?!\d)", results)]
