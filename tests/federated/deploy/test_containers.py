"""The container images of lab and server, as far as they can be checked without building them."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from bottlegan.federated.deploy.consortium import deploy
from bottlegan.federated.server.config import FederationConfig

ROOT = Path(__file__).parents[3]
LINES = (ROOT / "containers" / "Containerfile").read_text().replace("\\\n", " ").splitlines()
ORDERS = [line.split(maxsplit=1) for line in LINES if line and not line.startswith("#")]
TARGETS = {"lab": "start.sh", "server": "server/superlink.sh"}
MOUNTED = {"lab": "/federation", "server": "/federation/server"}
WITHOUT_RIGHTS = {"--read-only", "--cap-drop=all", "--security-opt=no-new-privileges"}


def list_orders(kind: str) -> list[str]:
    return [rest for order, rest in ORDERS if order == kind]


def list_runs() -> list[list[str]]:
    """The commands that docs/deployment.md gives to run the images."""
    text = (ROOT / "docs" / "deployment.md").read_text().replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines() if line.startswith("podman run")]


def test_images_begin_with_a_version_of_python_that_we_support() -> None:
    first, *others = list_orders("FROM")
    version = re.fullmatch(r"docker\.io/library/python:3\.(\d+)-slim-\w+ AS base", first)
    assert version is not None
    assert f"Python :: 3.{version[1]}" in (ROOT / "pyproject.toml").read_text()
    assert others == [f"base AS {target}" for target in TARGETS]


def test_nobody_in_them_is_root() -> None:
    assert list_orders("USER") == ["10001:10001"]
    kinds = [order for order, _ in ORDERS]
    # Nothing after this changes the image.
    assert set(kinds[kinds.index("USER") + 1 :]) == {"FROM", "ENTRYPOINT"}


def test_what_is_installed_is_in_the_lock_and_of_the_extras_that_there_are() -> None:
    (run,) = list_orders("RUN")
    assert "--constraint requirements.lock" in run
    assert "grep '^torch==' requirements.lock" in run
    assert re.search(r"^torch==", (ROOT / "requirements.lock").read_text(), re.M)
    extras = re.search(r'"\.\[([\w,]+)\]"', run)
    assert extras is not None
    known = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in known for extra in extras[1].split(","))


def test_only_what_is_needed_is_copied_and_no_key_can_be() -> None:
    copied = [name for order in list_orders("COPY") for name in order.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    ignored = [line for line in (ROOT / ".containerignore").read_text().splitlines() if not line.startswith("#")]
    assert ignored == ["*", *(f"!{name}" for name in copied)]
    assert list_orders("ADD") == []


def test_they_start_what_deploy_init_has_written(tmp_path: Path) -> None:
    deploy(tmp_path / "consortium", "federation.example.org", ["graz", "uppsala"], FederationConfig())
    made = {"lab": tmp_path / "consortium" / "labs" / "graz", "server": tmp_path / "consortium"}
    assert list_orders("ENTRYPOINT") == [f'["/federation/{script}"]' for script in TARGETS.values()]
    assert all((made[target] / script).exists() for target, script in TARGETS.items())


@pytest.mark.parametrize("row", range(len(TARGETS)))
def test_the_commands_of_the_docs_give_them_no_rights(row: int) -> None:
    words = list_runs()[row]
    assert set(words) >= WITHOUT_RIGHTS
    target = list(TARGETS)[row]
    assert words[-1] == f"bottlegan-{target}"
    assert not {"--privileged", "--publish", "-p", "--cap-add"} & {word.split("=")[0] for word in words}
    volumes = [word.split(":") for before, word in pairwise(words) if before == "--volume"]
    # Only the mounted folder is written to.
    assert [each[1] for each in volumes if each[-1] != "ro"] == [MOUNTED[target]]
