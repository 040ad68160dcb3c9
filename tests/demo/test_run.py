import json
from pathlib import Path

import pytest

from bottlegan.core.config import parse
from bottlegan.core.errors import ConfigError
from bottlegan.demo.rounds import WAYS
from bottlegan.demo.run import DemoConfig, run_demo
from bottlegan.models.paradigms import BottleGAN

TINY = DemoConfig(labs=2, patches=2, reference=4, size=128, rounds=2)


def test_the_demo_writes_a_report_and_metrics_that_its_seed_reproduces(tmp_path: Path) -> None:
    for name in ("first", "again"):
        report = run_demo(TINY, tmp_path / name)
        assert report == tmp_path / name / "report.html"
        assert {path.name for path in report.parent.iterdir()} == {
            "report.html",
            "metrics.json",
            "labs.jpg",
            "styles.safetensors",
        }
    first, again = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("first", "again"))
    assert first == again
    metrics = json.loads(first["metrics.json"])
    assert metrics["mean"]["mse"] < 0.5 * metrics["mean"]["mse_before"]
    assert set(metrics["labs"]) == {"lab-01", "lab-02"}
    page = first["report.html"].decode()
    assert page.count("<img") == 2 * 2 * 3
    assert page.count("<polyline") == 3 * len(WAYS)
    assert set(metrics["segmentation"]) == {way.key for way in WAYS}
    assert all(0 <= found["iou"] <= 1 and found["nll"] > 0 for found in metrics["segmentation"].values())
    assert BottleGAN.load(tmp_path / "first" / "styles.safetensors").codes.names == ["lab-01", "lab-02"]
    assert "http" not in page, "the report must open without a network"


@pytest.mark.parametrize("change", [{"labs": 1}, {"patches": 1}, {"reference": 1}, {"rounds": 0}])
def test_an_empty_demo_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        parse(DemoConfig, change, "demo.toml")
