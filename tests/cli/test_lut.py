import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bottlegan.cli import main as cli
from bottlegan.colormap.checks import MapChecks, check_map
from bottlegan.colormap.cube import read_cube
from bottlegan.colormap.levels import Floats
from bottlegan.colormap.table import ColorMap
from bottlegan.imaging.files import Pixels, read_image
from bottlegan.models.paradigms import BottleGAN
from bottlegan.normalize.normalizer import Normalizer


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["bottlegan", "lut", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, draw_model: Callable[..., BottleGAN]) -> Path:
    """A folder with a model of two styles, one of a single style, one of none, and one that sees other pixels."""
    folder = tmp_path_factory.mktemp("lut")
    for name, styles, statistics in (
        ("two", ["a", "our [lab]"], "frozen"),
        ("one", ["a"], "frozen"),
        ("none", [], "frozen"),
        ("paper", ["a"], "instance"),
    ):
        draw_model(styles, statistics, 0.2).save(folder / f"{name}.safetensors")
    (folder / "broken.cube").write_text("LUT_3D_SIZE 2\n0 0 0\n")
    return folder


def test_it_writes_a_table_and_a_picture_and_prints_the_checks(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "our.cube"
    words = ("--model", root / "two.safetensors", "--style", "our [lab]", "--direction", "restain", "--size", "17")
    assert run(monkeypatch, *words, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "restain: our [lab]" in printed
    for words_of_a_row in ("white becomes", "lighter along hematoxylin", "jump between neighbors", "random colors"):
        assert words_of_a_row in printed
    assert "SHA-256" not in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["our.cube", "our.png"]
    assert read_image(tmp_path / "our.png").std() > 10
    Normalizer.load(root / "two.safetensors", "our [lab]").to_cube(tmp_path / "same.cube", 17, "restain")
    assert out.read_bytes() == (tmp_path / "same.cube").read_bytes()


def test_the_only_style_needs_no_name_and_the_exact_table_is_told(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    strides: list[int] = []

    def watch(convert: Any, stride: int) -> MapChecks:
        strides.append(stride)
        return check_map(convert, 85)

    monkeypatch.setattr(ColorMap, "digest", lambda _, progress: "0123abcd" if progress is not None else "")
    monkeypatch.setattr("bottlegan.colormap.checks.check_map", watch)
    out = tmp_path / "a.cube"
    assert run(monkeypatch, "--model", root / "one.safetensors", "--out", out, "--exact") == 0
    assert "SHA-256 of the exact table: 0123abcd" in capsys.readouterr().out
    assert "SHA-256 of the exact table: 0123abcd" in read_cube(out).comments
    assert strides == [1]
    assert read_cube(out).title == "BottleGAN normalize a"
    assert len(read_cube(out).grid) == 33


def test_a_table_is_compared_with_the_model_and_nothing_is_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bottlegan.colormap.checks.STRIDE", 85)
    right, wrong = tmp_path / "right.cube", tmp_path / "wrong.cube"
    normalizer = Normalizer.load(root / "one.safetensors")
    normalizer.to_cube(right, 17)
    normalizer.to_cube(wrong, 17, "restain")
    means = []
    for path in (right, wrong):
        assert run(monkeypatch, "--model", root / "one.safetensors", "--check", path) == 0
        row = re.search(r"200000 random colors\s+│\s+([\d.]+)", capsys.readouterr().out)
        assert row is not None
        means.append(float(row[1]))
    assert means[0] < 1 < means[1]
    assert f"200000 random colors: mean {means[0]:.4f} levels" in right.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["right.cube", "wrong.cube"]


class Inverted:
    """A map of colors that turns white into black."""

    def __call__(self, levels: Pixels) -> Pixels:
        return 255 - levels

    def map_densities(self, densities: Floats) -> Floats:
        return -np.log((257 - 256 * np.exp(-densities)) / 256)


def test_a_map_that_fails_a_check_is_marked(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bottlegan.colormap.checks.STRIDE", 85)
    monkeypatch.setattr(Normalizer, "color_map", lambda *_: Inverted())
    for direction, marks in (("normalize", 5), ("restain", 4)):  # a lab's glass need not be white
        words = ("--model", root / "one.safetensors", "--out", tmp_path / "a.cube", "--direction", direction)
        assert run(monkeypatch, *words) == 0
        printed = capsys.readouterr().out
        assert printed.count("look at it") == marks
        assert printed.count("fine") == 1
        assert "0 0 0: 255 levels off" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "two.safetensors", "--out", "O"], "has 2 styles; choose one with --style NAME: a, our [lab]"),
        (["--model", "two.safetensors", "--style", "c", "--out", "O"], "no style called c; known are: a, our [lab]"),
        (
            ["--model", "none.safetensors", "--style", "c", "--out", "O"],
            "has no style; add one with bottlegan onboard",
        ),
        (["--style", "c", "--out", "O"], "has no style"),
        (["--model", "gone.safetensors", "--out", "O"], "gone.safetensors: there is no such file"),
        (["--model", "paper.safetensors", "--out", "O"], "not a map of colors"),
        (["--model", "one.safetensors"], "--out FILE.cube"),
        (["--model", "one.safetensors", "--out", "O", "--size", "16"], "17, 33 or 65, got 16"),
        (["--model", "one.safetensors", "--out", "o.txt"], "o.txt: the name must end in .cube"),
        (["--model", "one.safetensors", "--out", "gone/o.cube"], "gone: there is no such folder"),
        # The output path is checked first, before anything that takes time.
        (["--model", "gone.safetensors", "--out", "gone/o.cube"], "gone: there is no such folder"),
        (["--model", "one.safetensors", "--out", "taken.cube"], "taken.png: is a folder"),
        (["--model", "one.safetensors", "--out", "O", "--check", "broken.cube"], "broken.cube: has 1 colors"),
        (["--model", "one.safetensors", "--check", "gone.cube"], "gone.cube: there is no such file"),
    ],
)
def test_wrong_arguments_are_named_and_nothing_is_written(
    words: list[str], message: str, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    (root / "taken.png").mkdir(exist_ok=True)
    before = sorted(root.iterdir())
    assert run(monkeypatch, *("o.cube" if word == "O" else word for word in words)) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1
    assert not printed.out
    assert sorted(root.iterdir()) == before


def test_a_wrong_direction_is_bad_usage(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--model", root / "one.safetensors", "--out", root / "o.cube", "--direction", "sideways")
    assert run(monkeypatch, *words) == 2
    assert not (root / "o.cube").exists()


def test_the_picture_shows_the_stains_of_the_images_that_the_map_is_for(root: Path, tmp_path: Path) -> None:
    from bottlegan.cli.lut import _draw  # noqa: PLC0415

    normalizer = Normalizer.load(root / "one.safetensors")
    pictures = [_draw(normalizer, direction) for direction in ("normalize", "restain")]
    assert not np.array_equal(pictures[0][26:154, 12:140], pictures[1][26:154, 12:140])
    assert np.array_equal(pictures[0][26:154, 12:140], pictures[1][180:308, 12:140])  # both ways agree
