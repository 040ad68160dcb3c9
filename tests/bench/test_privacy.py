"""The attacks of a curious server."""

import numpy as np
import pytest
import torch

from bottlegan.bench.privacy import bench_privacy
from bottlegan.bench.privacy_attacks import Candidate, Seen, attack, differentiate, find_area, find_property, locate
from bottlegan.bench.privacy_styles import tell_lab
from bottlegan.core.seeding import numpy_stream
from bottlegan.data.labels import Labeled
from bottlegan.federated.protocol.phase2 import Phase2Config, initial_weights
from bottlegan.federated.protocol.privacy import add_row, to_row
from bottlegan.models.networks import NetworkConfig
from bottlegan.training.task import TrainingConfig

CONFIG = Phase2Config(
    mode="plain",
    network=NetworkConfig(arguments={"width": 4, "depth": 2, "stride": 4}),
    training=TrainingConfig(crop=32),
)


def draw_patch(name: str) -> Labeled:
    random = numpy_stream(3, name)
    return Labeled(
        random.integers(0, 256, (32, 32, 3)).astype(np.uint8), random.integers(0, 2, (32, 32)).astype(np.uint8)
    )


def test_an_update_along_the_gradients_of_its_images_gives_them_away() -> None:
    start = initial_weights(CONFIG, 0)
    candidates = [
        Candidate(lab, draw_patch(f"{lab} {kind} {row}"), member=kind == "member")
        for lab in ("a", "b")
        for kind in ("member", "other")
        for row in range(3)
    ]
    updates = {
        lab: -0.05
        * sum(differentiate(start, each.patch, CONFIG)[1] for each in candidates if each.lab == lab and each.member)
        for lab in ("a", "b")
    }
    average = sum(updates.values()) / 2
    clear = attack(candidates, [Seen(1, start, average, updates)], add_row(start, average), CONFIG)
    assert clear["update alignment"] == 1
    assert clear["loss drop"] > 0.7
    assert clear["lab told"] == 1
    hidden = attack(candidates, [Seen(1, start, average, {})], add_row(start, average), CONFIG)
    assert hidden["lab told"] == hidden["lab by chance"] == 0.5
    assert hidden["update alignment"] <= clear["update alignment"]


def test_a_bias_tells_the_share_of_a_class_unless_updates_are_hidden() -> None:
    start = {"a": torch.zeros(3), "head.bias": torch.zeros(2), "z": torch.zeros(1)}
    shares = {"x": 0.1, "y": 0.5, "z": 0.9}
    updates = {name: to_row({**start, "head.bias": torch.full((2,), share)}, start) for name, share in shares.items()}
    assert locate(start, "head.bias") == slice(3, 5)
    assert find_property(Seen(1, start, updates["x"], updates), shares, "head.bias") == pytest.approx(1)
    assert find_property(Seen(1, start, updates["x"], {}), shares, "head.bias") == 0


def test_the_area_is_half_when_guessing_and_one_when_sure() -> None:
    members = np.array([True, False] * 50)
    assert find_area(members.astype(float), members) == 1
    assert find_area(numpy_stream(1, "guess").random(100), members) == pytest.approx(0.5, abs=0.15)


def test_a_code_tells_its_lab_until_noise_hides_it() -> None:
    known = np.repeat(numpy_stream(1, "labs").normal(size=(10, 24)), 2, axis=0)
    halves = known + 0.05 * numpy_stream(1, "halves").normal(size=known.shape)
    assert tell_lab(halves, halves) == 1
    assert tell_lab(100 * numpy_stream(1, "noise").normal(size=known.shape), halves) < 0.5


def test_all_protections_are_compared() -> None:
    figures = bench_privacy("smoke", rounds=2)
    rows, styles = figures["rows"], figures["styles"]
    assert isinstance(styles, dict)
    levels = [row["levels"] for row in styles["rows"].values()]  # type: ignore[call-overload,index,union-attr]
    assert levels[0] == 0 < levels[1] < levels[-1]
    assert isinstance(rows, dict)
    assert list(rows)[:2] == ["none", "secure"]
    for name, row in rows.items():
        assert isinstance(row, dict)
        assert 0 <= float(str(row["IOU"])) <= 1
        assert (row["epsilon"] is None) == ("noise" not in name and "epsilon" not in name)
        assert ("secure" in name) == (row["lab told"] == row["lab by chance"] and row["property, r"] == 0)
