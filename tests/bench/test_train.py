import json

import pytest

from bottlegan.bench import train as bench
from bottlegan.core.progress import Silent
from bottlegan.reproduce.paired import load_halves
from bottlegan.training.gan import PRESETS, TrainConfig


def test_both_presets_are_measured_in_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    small = TrainConfig(steps=30, warm_steps=30, batch=4, pixels=128, crop=32, check_every=10)
    cold = TrainConfig(steps=4, warm_steps=0, batch=4, pixels=128, crop=32, check_every=2)
    monkeypatch.setitem(PRESETS, "default", small)
    monkeypatch.setattr(bench, "PAPER", cold)
    figures = bench.bench_train(load_halves("smoke", None, 0, Silent()), paper_seconds=60)
    json.dumps(figures, allow_nan=False)
    assert figures["styles"] == 6
    traces = figures["traces"]
    assert [len(trace["mse"]) for trace in traces] == [4, 4, 3]
    assert traces[0]["mse"][0] < traces[2]["mse"][0], "the warm start is better than nothing before the first step"
    assert all(trace["seconds"] == sorted(trace["seconds"]) for trace in traces)
