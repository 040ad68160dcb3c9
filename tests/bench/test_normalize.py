import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bottlegan.bench import normalize as bench
from bottlegan.cli import main as cli
from bottlegan.core.errors import InputError
from bottlegan.core.progress import Silent
from bottlegan.imaging.files import Pixels

OURS = {
    "ours",
    "ours, another image of the lab",
    "ours, no color known yet",
    "ours, fitting included",
    "ours, the network without a table",
}


def missing(reference: Pixels) -> Callable[[Pixels], Pixels]:
    raise ImportError("not installed")


def failing(reference: Pixels) -> Callable[[Pixels], Pixels]:
    def normalize(image: Pixels) -> Pixels:
        raise RuntimeError("broken")

    return normalize


def test_ours_and_the_peers_are_timed_in_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchstain")
    torchstain = {name: peer for name, peer in bench.PEERS.items() if name.startswith("torchstain")}
    monkeypatch.setattr(bench, "PEERS", torchstain | {"a": missing, "b": failing})
    figures = bench.bench_normalize(64, repeats=2)
    json.dumps(figures, allow_nan=False)
    rows = figures["rows"]
    assert rows.keys() == OURS | torchstain.keys() | {"a", "b"}
    assert rows["a"] == {"note": "not installed"}
    assert rows["b"] == {"note": "failed: RuntimeError: broken"}
    assert rows[bench.BASE]["ratio to torchstain Macenko"] == 1
    assert all(len(rows[name]["seconds"]) == 2 for name in OURS)
    assert all(0 < count <= 64 * 64 for count in figures["colors"])


def test_without_torchstain_there_are_speeds_but_no_ratios() -> None:
    rows = bench.summarize({"ours": [1.0, 4.0, 2.0]}, megapixels=4)
    row = {"megapixels a second": 2, "ratio to torchstain Macenko": None, "seconds": [1.0, 4.0, 2.0]}
    assert rows == {"ours": row}


def test_large_images_are_tiled_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "TISSUE", 64)
    first, second, reference = bench.draw_images(160, Silent())
    assert first.shape == second.shape == (160, 160, 3)
    assert reference.shape == (128, 128, 3)
    assert not np.array_equal(first, second)


def test_the_network_without_a_table_maps_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "STRIP", 5)
    image = np.arange(12 * 4 * 3, dtype=np.uint8).reshape(12, 4, 3)
    np.testing.assert_array_equal(bench.map_plainly(lambda batch: batch, image), image)  # type: ignore[arg-type]


def test_tiatoolbox_is_given_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    class Normalizer:
        def fit(self, target: Pixels) -> None:
            self.target = target

        def transform(self, image: Pixels) -> Pixels:
            return image + self.target[0, 0]

    monkeypatch.setattr(bench, "find_package", lambda name: SimpleNamespace(MacenkoNormalizer=Normalizer))
    ones = np.ones((2, 2, 3), np.uint8)
    assert (bench.peer_tiatoolbox("Macenko")(ones)(ones) == 2).all()


def test_a_package_that_cannot_be_used_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match="not installed"):
        bench.find_package("no_such_package.part")
    (tmp_path / "a_broken_package.py").write_text("raise RuntimeError('needs CUDA')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="cannot be imported: RuntimeError: needs CUDA"):
        bench.find_package("a_broken_package")


def test_no_image_is_refused() -> None:
    with pytest.raises(InputError, match="at least 64 px"):
        bench.bench_normalize(0)


def test_the_command_writes_the_figures_and_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "PEERS", {"a": missing})
    path, words = tmp_path / "bench.json", ("--size", "64", "--repeats", "1")
    monkeypatch.setattr(sys, "argv", ["bottlegan", "bench", "normalize", *words, "--json", str(path)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert not caught.value.code
    assert json.loads(path.read_text())["rows"].keys() == OURS | {"a"}
    shown = capsys.readouterr().out
    assert "ours, another image" in shown
    assert "a: not installed" in shown
