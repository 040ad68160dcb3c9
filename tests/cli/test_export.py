import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bottlegan.cli import main as cli
from bottlegan.colormap.cube import read_cube
from bottlegan.models.document import PRIOR
from bottlegan.models.paradigms import BottleGAN
from bottlegan.models.weights import read_weights
from bottlegan.normalize.normalizer import Normalizer


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["bottlegan", "export", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def need_onnx() -> None:
    for name in ("onnx", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'bottlegan[export]'")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, draw_model: Callable[..., BottleGAN]) -> Path:
    """A folder with a tiny model of two styles, one of a single style, one of none, and one that sees other pixels."""
    folder = tmp_path_factory.mktemp("export")
    for name, styles, statistics in (
        ("two", ["a", "our $lab"], "frozen"),
        ("one", ["a"], "frozen"),
        ("none", [], "frozen"),
        ("paper", ["a"], "instance"),
    ):
        draw_model(styles, statistics, 0.2).save(folder / f"{name}.safetensors")
    return folder


def fake(monkeypatch: pytest.MonkeyPatch, differ: int, largest: int) -> None:
    """Replace the comparison of all colors by this result."""
    from bottlegan.colormap.onnx import Difference  # noqa: PLC0415 - onnx may not be there

    def compare(path: Path, exact: Any, progress: Any) -> Difference:
        assert path.stat().st_size > 1000
        return Difference(256**3, differ, largest)

    monkeypatch.setattr("bottlegan.colormap.onnx.compare_onnx", compare)


def test_it_writes_both_and_runs_the_model_on_all_colors(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need_onnx()
    from bottlegan.colormap.onnx import open_onnx  # noqa: PLC0415 - onnx may not be there

    words = ("--model", root / "two.safetensors", "--style", "our $lab", "--direction", "restain")
    both = ("--onnx", tmp_path / "our.onnx", "--qupath", tmp_path / "our.groovy")
    assert run(monkeypatch, *words, *both) == 0
    printed = capsys.readouterr()
    assert "16,777,216 colors" in printed.out
    assert "200000 tissue-like colors: mean" in printed.out
    assert "comparing all colors" in printed.err
    assert names(tmp_path) == ["our.cube", "our.groovy", "our.onnx"]

    normalizer = Normalizer.load(root / "two.safetensors", "our $lab")
    image = np.random.default_rng(0).integers(0, 256, (2, 30, 40, 3), np.uint8)
    mapped = open_onnx(tmp_path / "our.onnx")(image)
    assert np.abs(np.subtract(mapped, normalizer.color_map("restain")(image), dtype=np.int16)).max() <= 1
    normalizer.to_cube(tmp_path / "same.cube", 65, "restain")
    assert (tmp_path / "our.cube").read_bytes() == (tmp_path / "same.cube").read_bytes()
    script = (tmp_path / "our.groovy").read_text()
    assert f"String table = {json.dumps(str(tmp_path / 'our.cube'))}" in script
    assert r'String title = "BottleGAN restain our \$lab"' in script


def test_a_model_says_whose_map_it_is(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_onnx()
    import onnx  # noqa: PLC0415 - it may not be there

    fake(monkeypatch, 3, 1)
    assert run(monkeypatch, "--model", root / "one.safetensors", "--onnx", tmp_path / "a.onnx") == 0
    said = {each.key: each.value for each in onnx.load(tmp_path / "a.onnx").metadata_props}
    assert said.pop("bottlegan")
    assert said == {"style": "a", "direction": "normalize", "pen": "mapped"}  # it knows no reference stain


@pytest.mark.parametrize(("everything", "pen"), [(False, "left as it is"), (True, "mapped")])
def test_pen_is_mapped_only_if_everything_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everything: bool, pen: str
) -> None:
    need_onnx()
    import onnx  # noqa: PLC0415 - it may not be there

    from bottlegan.colormap.onnx import open_onnx  # noqa: PLC0415

    fake(monkeypatch, 0, 0)
    image = np.full((4, 4, 3), (40, 200, 60), np.uint8)
    lab = tmp_path / "lab.safetensors"
    Normalizer(read_weights(PRIOR), np.zeros(24, np.float32), "a").save(lab)
    words = ("--everything",) if everything else ()
    assert run(monkeypatch, "--model", lab, "--onnx", tmp_path / "a.onnx", *words) == 0
    assert {each.key: each.value for each in onnx.load(tmp_path / "a.onnx").metadata_props}["pen"] == pen
    exact = Normalizer.load(lab, everything=everything)(image)
    assert np.array_equal(exact, image) == (not everything)
    assert np.abs(np.subtract(open_onnx(tmp_path / "a.onnx")(image[None])[0], exact, dtype=np.int16)).max() <= 1


@pytest.mark.parametrize(("differ", "largest"), [(1, 2), (20_000, 1)])
def test_a_model_that_maps_other_colors_is_not_kept(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    differ: int,
    largest: int,
) -> None:
    need_onnx()
    fake(monkeypatch, differ, largest)
    (tmp_path / "older.onnx").write_text("older")
    words = ("--model", root / "one.safetensors", "--qupath", tmp_path / "a.groovy")
    for name in ("new.onnx", "older.onnx"):
        assert run(monkeypatch, *words, "--onnx", tmp_path / name) == 1
        printed = capsys.readouterr()
        assert printed.err.startswith(f"bottlegan: {tmp_path / name}: {differ:,} of 16,777,216 colors")
        assert "so it is not written" in printed.err
        assert not printed.out
    assert names(tmp_path) == ["older.onnx"]
    assert (tmp_path / "older.onnx").read_text() == "older"


def test_an_interrupt_leaves_nothing(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_onnx()

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bottlegan.colormap.onnx.compare_onnx", stop)
    assert run(monkeypatch, "--model", root / "one.safetensors", "--onnx", tmp_path / "a.onnx") == 130
    assert names(tmp_path) == []


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_without_the_extra_it_says_what_to_install(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    if missing == "onnxruntime":
        pytest.importorskip("onnx", reason="onnx is not installed, so it is what is missing")
    monkeypatch.delitem(sys.modules, "bottlegan.colormap.onnx", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    assert run(monkeypatch, "--model", root / "one.safetensors", "--onnx", tmp_path / "a.onnx") == 2
    assert capsys.readouterr().err == f"bottlegan: {missing} is not installed; pip install 'bottlegan[export]'\n"
    assert names(tmp_path) == []
    assert run(monkeypatch, "--model", root / "one.safetensors", "--qupath", tmp_path / "a.groovy") == 0
    assert len(read_cube(tmp_path / "a.cube").grid) == 65


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to do; name a model to write with --onnx FILE.onnx, or a script with --qupath"),
        (["--qupath", ""], ".: the name must end in .groovy"),
        (["--qupath", "OUT/a.txt"], "OUT/a.txt: the name must end in .groovy; change the name"),
        (["--qupath", "OUT/no/a.groovy"], "OUT/no: there is no such folder to write a.groovy to; create it first"),
        (["--qupath", "OUT/folder.groovy"], "OUT/folder.groovy: is a folder, but a file is written; add a file name"),
        (["--qupath", "OUT/b.groovy"], "OUT/b.cube: is a folder, but a file is written; add a file name"),
        (["--onnx", "OUT/a.groovy"], "OUT/a.groovy: the name must end in .onnx; change the name"),
        (["--qupath", "OUT/a.groovy", "--model", "ROOT/two.safetensors"], "has 2 styles; choose one with --style"),
        (["--qupath", "OUT/a.groovy", "--model", "ROOT/none.safetensors"], "has no style; add one with bottlegan"),
        (["--qupath", "OUT/a.groovy", "--model", "ROOT/no.safetensors"], "there is no such file"),
        (["--qupath", "OUT/a.groovy", "--style", "b"], "there is no style called b; known are: a"),
        (["--qupath", "OUT/a.groovy", "--model", "ROOT/paper.safetensors"], "not a map of colors"),
        (["--qupath", "OUT/a.groovy", "--direction", "both"], "'both' is not one of"),
    ],
)
def test_bad_usage_is_told_and_nothing_is_written(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    for folder in ("folder.groovy", "b.cube"):
        (tmp_path / folder).mkdir()
    places = [word.replace("OUT", str(tmp_path)).replace("ROOT", str(root)) for word in words]
    model = [] if "--model" in words else ["--model", str(root / "one.safetensors")]
    assert run(monkeypatch, *places, *model) == 2
    assert message.replace("OUT", str(tmp_path)) in " ".join(capsys.readouterr().err.split())
    assert names(tmp_path) == ["b.cube", "folder.groovy"]


def test_it_needs_no_torch(root: Path, tmp_path: Path) -> None:
    others = "".join(f"import {name};" for name in ("onnx", "onnxruntime") if find_spec(name) is not None)
    program = (
        f"import sys; {others} from bottlegan.cli.main import app;"
        "app(sys.argv[1:], standalone_mode=False); print('torch' in sys.modules)"
    )
    words = ["export", "--model", root / "one.safetensors", "--qupath", tmp_path / "a.groovy"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
