from pathlib import Path

import numpy as np
import pytest

from bottlegan.bench import predict as bench
from bottlegan.core.errors import InputError


def test_predicting_is_compared_with_reading_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
    for name, value in (("STEPS", 2), ("PATCHES", 1), ("SIDE", 128)):
        monkeypatch.setattr(bench, name, value)
    figures = bench.bench_predict(size=1024, repeats=1)
    assert figures["megapixels of the network"] == pytest.approx(0.262, abs=0.001)
    rows = figures["rows"]
    assert isinstance(rows, dict)
    assert rows["reading alone"]["ratio to reading alone"] == 1  # type: ignore[index, call-overload]
    assert all(np.isfinite(row["megapixels a second, of the slide"]) for row in rows.values())  # type: ignore[index, call-overload, arg-type]


def test_no_repeats_are_refused() -> None:
    with pytest.raises(InputError, match="at least one repeat"):
        bench.bench_predict(repeats=0)
