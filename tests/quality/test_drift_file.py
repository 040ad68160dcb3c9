import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bottlegan.core.errors import ConfigError
from bottlegan.onboarding.verdict import Verdict
from bottlegan.quality.drift import STEPS, Batch, Drift, Limit, Point
from bottlegan.quality.drift_file import read_drift
from bottlegan.quality.drift_report import DATA, list_sections, to_json, write_drift


def make_drift(limit: Limit | None = None) -> Drift:
    random = np.random.default_rng(0)

    def draw(name: str, verdict: Verdict, distance: float | None, out: bool) -> Point:
        batch = Batch(name, 3, verdict, "why", torch.from_numpy(random.normal(size=24).astype(np.float32)))
        return Point(batch, not out, distance, distance, out, random.integers(0, 256, (STEPS, STEPS, 3), np.uint8))

    points = [
        draw("2026-01", Verdict.GOOD, 0.1, False),
        draw("2026-02", Verdict.UNCERTAIN, 2.0, True),
        draw("2026-03", Verdict.REFUSED, None, False),
    ]
    return Drift("our lab", False, points, limit, random.integers(0, 256, (STEPS, STEPS, 3), np.uint8))


@pytest.mark.parametrize("limit", [None, Limit(0.1, 0.5)])
def test_what_was_written_is_read_back_whole(limit: Limit | None, tmp_path: Path) -> None:
    drift = make_drift(limit)
    write_drift(drift, tmp_path)
    found = read_drift(tmp_path / DATA)
    assert to_json(found) == to_json(drift)
    assert [str(each) for each in list_sections(found)] == [str(each) for each in list_sections(drift)]


def test_the_way_of_the_stain_is_drawn(tmp_path: Path) -> None:
    titles = [each.title for each in list_sections(make_drift())]
    assert "Map of the batches' styles" in titles


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said.pop("style"),
        lambda said: said["batches"][0].update(verdict="fine"),
        lambda said: said["colors"].pop(),
        lambda said: said["batches"][1]["colors"][2].pop(),
        lambda said: said["colors"][0].__setitem__(0, [0, 0, 256]),
    ],
)
def test_another_file_is_refused(change: Any, tmp_path: Path) -> None:
    said: Any = to_json(make_drift())
    change(said)
    (tmp_path / DATA).write_text(json.dumps(said))
    with pytest.raises(ConfigError, match=r"drift\.json"):
        read_drift(tmp_path / DATA)
