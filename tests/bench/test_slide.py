import json
import sys
from pathlib import Path

import numpy as np
import pytest

from bottlegan.bench import slide as bench
from bottlegan.bench import tiles
from bottlegan.bench.slide import Finished, describe_row, run_apart, summarize
from bottlegan.colormap.table import ColorMap
from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.progress import Silent
from bottlegan.imaging.files import Pixels
from bottlegan.simulation.lab_folder import draw_lab
from bottlegan.simulation.slide import write_slide

for package in ("openslide", "simplejpeg", "tifffile"):
    pytest.importorskip(package, reason="needs pip install 'bottlegan[slides]'")
STEPS = {"import and compile": 2.0, "fit": 1.0, "from cold": 4.0, "table ready": 3.0}


@pytest.fixture(scope="module")
def slide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("slide") / "slide.tiff"
    write_slide(path, 1200, 3, draw_lab(3))
    return path


def test_a_run_is_measured_from_outside() -> None:
    held = "data = b'x' * (200 * 10**6); print('noise'); print('{\"copy\": 2.5}')"
    found = run_apart([sys.executable, "-c", held])
    assert found.steps == {"copy": 2.5}
    assert 200 < found.memory < 300
    assert found.seconds > 0
    small = run_apart([sys.executable, "-c", "pass"])
    assert small.memory < 100  # not the memory of this large process
    assert small.steps == {}
    with pytest.raises(InputError, match="failed: ValueError: no such slide"):
        run_apart([sys.executable, "-c", "raise ValueError('no such slide')"])


def test_rows_are_medians_beside_the_copy() -> None:
    taken = {
        "pyvips copy": [Finished(9.0, 50.0, {"copy": each}) for each in (5.0, 4.0, 8.0)],
        "ours": [Finished(11.0, 400.0, STEPS), Finished(12.0, 420.0, {**STEPS, "table ready": 9.0})],
        "the command": [Finished(10.0, 390.0, {})],
    }
    rows = summarize(taken, 100.0)
    assert list(rows) == ["pyvips copy", *(f"ours, {step}" for step in STEPS), "the command"]
    assert rows["ours, table ready"] == describe_row([(3.0, 400.0), (9.0, 420.0)], 5.0, 100.0)
    assert rows["ours, table ready"] == {
        "seconds": 6.0,
        "ratio to pyvips copy": 1.2,
        "megapixels a second": 100 / 6,
        "peak memory, MB": 420.0,
        "all seconds": [3.0, 9.0],
    }
    assert rows["the command"]["ratio to pyvips copy"] == 2.0  # type: ignore[index, call-overload]


def test_each_is_measured_by_turns(slide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyvips", reason="needs pip install 'bottlegan[bench]'")
    asked: list[list[str]] = []

    def run(command: list[str]) -> Finished:
        asked.append(command)
        return Finished(6.0, 100.0, {"copy": 5.0} if "copy" in command else STEPS if "ours" in command else {})

    monkeypatch.setattr(bench, "run_apart", run)
    monkeypatch.setattr(bench, "bench_tiles", lambda path, progress: {"tiles": str(path)})
    figures = bench.bench_slide(slide, quality=85, repeats=2)
    assert [next(kind for kind in ("copy", "ours", "normalize") if kind in each) for each in asked] == [
        "copy",
        "ours",
        "normalize",
    ] * 2
    assert all(str(slide) in each and "85" in each for each in asked)
    assert figures["megapixels"] == 1.44
    assert figures["tiles"] == {"tiles": str(slide)}
    json.dumps(figures, allow_nan=False)


def test_a_copy_by_libvips_is_a_pyramid(slide: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyvips", reason="needs pip install 'bottlegan[bench]'")
    from openslide import OpenSlide  # noqa: PLC0415 - only here

    found = run_apart([*bench.RUN, "copy", str(slide), str(tmp_path / "out.tiff"), "90"])
    assert found.steps["copy"] > 0
    with OpenSlide(tmp_path / "out.tiff") as copied:
        assert copied.level_dimensions[:2] == ((1200, 1200), (600, 600))


def test_bad_wishes_are_refused(slide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="at least one repeat, got 0"):
        bench.bench_slide(slide, repeats=0)
    monkeypatch.setattr(bench, "find_spec", lambda _: None)
    with pytest.raises(MissingError, match=r"pip install 'bottlegan\[bench,slides\]'"):
        bench.bench_slide(slide)


def test_tiles_are_exact_and_peers_that_fail_are_told(slide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Pixels) -> None:
        raise ImportError("not installed")

    def failing(_: Pixels) -> None:
        raise ZeroDivisionError("no tissue")

    monkeypatch.setattr(tiles, "TILES", 3)
    monkeypatch.setattr(tiles, "SIZE", 32)
    monkeypatch.setattr(tiles, "OFTEN", 1)
    monkeypatch.setattr(tiles, "PEERS", {"absent": missing, "broken": failing})
    figures = tiles.bench_tiles(slide, Silent())
    assert figures["levels between a tile alone and in the slide"] == 0
    assert int(figures["levels between a tile and its network"]) <= 1  # type: ignore[arg-type]
    rows = figures["rows"]
    assert isinstance(rows, dict)
    assert rows["absent"] == {"note": "not installed"}
    assert rows["broken"] == {"note": "failed: ZeroDivisionError: no tissue"}
    for name in (tiles.OURS, *tiles.SHAPES):
        assert rows[name]["megapixels a second"] > 0  # type: ignore[index, call-overload, operator]


def test_what_is_not_exact_shows(slide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = ColorMap.__call__
    called: list[ColorMap] = []

    def off(self: ColorMap, levels: Pixels) -> Pixels:
        mapped = really(self, levels)
        called.append(self)
        return mapped if called.count(self) == 1 else np.where(mapped > 9, mapped - 9, mapped + 9).astype(np.uint8)

    monkeypatch.setattr(tiles, "TILES", 9)
    monkeypatch.setattr(ColorMap, "__call__", off)
    alone, network = tiles.check_exact(slide).values()
    assert alone == 9
    assert int(network) >= 8  # type: ignore[arg-type]
