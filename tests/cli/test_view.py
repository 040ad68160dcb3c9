"""`bottlegan view`: the page for each kind of input, and the messages for refused ones."""

from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
from PIL import Image

from bottlegan.cli import view as command
from bottlegan.cli.main import app
from bottlegan.core.errors import InputError, MissingError

pytest.importorskip("starlette", reason="needs pip install 'bottlegan[viewer]'")
pytest.importorskip("uvicorn", reason="needs pip install 'bottlegan[viewer]'")


def run(*words: str | Path) -> None:
    # Not with typer's runner, which closes streams that the viewer's threads may still hold.
    app(["view", *map(str, words)], standalone_mode=False)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pages that commands showed, instead of waiting for Ctrl-C."""
    seen: list[str] = []

    def look(url: str, browser: bool) -> None:
        with urlopen(url) as answer:  # noqa: S310 - our own server
            seen.append(answer.read().decode())

    monkeypatch.setattr(command, "_wait", look)
    return seen


def test_each_kind_of_input_has_its_page(tmp_path: Path, pages: list[str]) -> None:
    images, federation = tmp_path / "images", tmp_path / "run"
    images.mkdir()
    federation.mkdir()
    Image.fromarray(np.full((64, 64, 3), 240, np.uint8)).save(images / "a.png")
    (federation / command.RUN_LOG).write_text('{"kind": "begun", "rounds": 9}\n')
    run(images / "a.png")
    run(images)
    run(federation)
    assert [page.count("first.js") for page in pages] == [1, 0, 0]
    assert [page.count("gallery.js") for page in pages] == [0, 1, 0]


def test_the_folders_of_runs_and_drift_are_told_by_their_own_names() -> None:
    from bottlegan.federated.server.folder import LOG  # noqa: PLC0415 - it imports more than a command should
    from bottlegan.quality.drift_report import DATA  # noqa: PLC0415

    assert (command.RUN_LOG, command.DRIFT_DATA) == (LOG, DATA)


def test_what_does_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / command.RUN_LOG).write_text("")
    with pytest.raises(InputError, match="is shown alone"):
        run(tmp_path, "--style", "lab-1")
    with pytest.raises(InputError, match="is shown alone"):
        run(tmp_path, tmp_path)
    Image.fromarray(np.full((64, 64, 3), 240, np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match="--network"):
        run(tmp_path / "a.png", "--allow", "a.b:c")


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"missing\.svs"):
        run(tmp_path / "missing.svs")
    with pytest.raises(MissingError, match="holds no slide"):
        run(tmp_path)
    (tmp_path / "broken.png").write_text("no image")
    with pytest.raises(InputError, match=r"broken\.png"):
        run(tmp_path / "broken.png")
