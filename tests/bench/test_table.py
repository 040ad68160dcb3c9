import numpy as np
import pytest

from bottlegan.bench import table as bench
from bottlegan.bench.table import compare, make_plane
from bottlegan.colormap.table import ColorMap
from bottlegan.core.progress import Progress, Silent
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES


@pytest.fixture(scope="module")
def normalizer() -> Normalizer:
    return Normalizer.fit(
        from_batch(render(draw_tissue(1, 0, 128).concentration[None], LABORATORIES[3]))[0], force=True
    )


def lazily(self: ColorMap, progress: Progress | None = None) -> None:
    """Replaces filling the table; colors are then learned when they are looked up."""


def test_planes_are_all_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SIDE", 4)
    planes = np.concatenate([make_plane(red).reshape(-1, 3) for red in range(4)])
    assert len(np.unique(planes, axis=0)) == 64
    assert planes.max() == 3


@pytest.mark.parametrize("direction", ["normalize", "restain"])
def test_hardly_a_color_differs_by_a_level(
    normalizer: Normalizer, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ColorMap, "fill", lazily)
    monkeypatch.setattr(bench, "SIDE", 40)
    found = compare(normalizer, direction, Silent())  # type: ignore[arg-type]
    assert int(found["largest difference"]) <= 1  # type: ignore[arg-type]
    assert int(found["differing"]) < 1e-3 * 40**3  # type: ignore[arg-type]
    assert float(found["seconds of the network"]) > 0  # type: ignore[arg-type]


def test_a_color_that_differs_is_counted(normalizer: Normalizer, monkeypatch: pytest.MonkeyPatch) -> None:
    really = ColorMap.__call__

    def off(self: ColorMap, levels: Pixels) -> Pixels:
        mapped = really(self, levels)
        mapped[5, 7, 1] ^= 64
        return mapped

    monkeypatch.setattr(ColorMap, "fill", lazily)
    monkeypatch.setattr(ColorMap, "__call__", off)
    monkeypatch.setattr(bench, "SIDE", 8)
    found = compare(normalizer, "normalize", Silent())
    assert int(found["differing"]) >= 8  # type: ignore[arg-type]
    assert int(found["largest difference"]) > 30  # type: ignore[arg-type]
