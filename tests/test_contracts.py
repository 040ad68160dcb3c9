"""What the repository promises about itself."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bottlegan

ROOT = Path(__file__).parents[1]


def tracked() -> list[Path]:
    """The files that belong to the repository."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so nothing says which files belong to the repository")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def normalized(requirement: str) -> str:
    return re.split(r"[<>=!~\[; ]", requirement)[0].lower().replace("_", "-")


def test_the_public_names() -> None:
    names = ["BottleGAN", "BottleGANError", "InputError", "Normalizer", "Predictor", "__version__"]
    assert sorted(bottlegan.__all__) == names
    assert all(hasattr(bottlegan, name) for name in bottlegan.__all__)


def test_every_dependency_is_locked_exactly_and_without_an_index() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if line and line[0] != "#"]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[0-9][^+ ]*", line) for line in lines)
    assert "torch==2.13.0" in lines
    locked = {line.split("==")[0] for line in lines}
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    # An extra may ask for another one of ours.
    assert {normalized(name) for name in wanted} - {"bottlegan"} <= locked


def test_no_file_of_code_is_too_long() -> None:
    counts = {path.name: path.read_text().count("\n") for path in tracked() if path.suffix == ".py"}
    long = {name: count for name, count in counts.items() if count > 400}
    assert not long


def test_nothing_names_a_machine_or_unpickles() -> None:
    forbidden = ("/root/", "/home/", "files.pythonhosted", "allow_pickle=True", "weights_only=False")
    for path in tracked():
        if path.suffix not in {".jpg", ".png", ".webp", ".safetensors"} and path != Path(__file__):
            text = path.read_text(encoding="utf-8")
            assert not [word for word in forbidden if word in text], path


def test_the_code_in_the_readme_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "expected error" in done.stdout


def test_the_commands_in_the_readme_exist() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    readme = (ROOT / "README.md").read_text()
    assert set(re.findall(r"^make ([a-z]+)", readme, re.MULTILINE)) <= set(targets)
    for name in re.findall(r"\]\((?!http)([^)#]+)\)", readme):
        assert (ROOT / name).exists(), f"README.md links to {name}, which is not there"
