import copy
import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from bottlegan.core.errors import InputError, MissingError
from bottlegan.data.patches import list_patches
from bottlegan.imaging.files import Pixels, write_image
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.document import PRIOR
from bottlegan.models.files import to_weights
from bottlegan.models.paradigms import BottleGAN
from bottlegan.onboarding.fit import Onboarding, onboard
from bottlegan.onboarding.verdict import Verdict
from bottlegan.quality.drift import (
    Batch,
    Limit,
    find_limit,
    fit_batches,
    list_batches,
    measure_drift,
    mix_colors,
)
from bottlegan.quality.drift_chart import Level, Mark, choose_step, draw_chart
from bottlegan.quality.drift_report import say_result, to_csv, to_json, write_drift
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES


@pytest.fixture(scope="module")
def model() -> BottleGAN:
    return BottleGAN.load(PRIOR)


def batch(name: str, shift: float, verdict: Verdict = Verdict.GOOD) -> Batch:
    """A batch whose code is `shift` in each component, so that codes are as far apart as shifts are."""
    return Batch(name, 4, verdict, "a reason", torch.full((24,), float(shift)))


def distances(batches: Sequence[Batch], model: BottleGAN, baseline: int = 3) -> list[float | None]:
    return [point.code_distance for point in measure_drift(batches, model, "lab", baseline).points]


def fill(folder: Path, eosin: float, seed: int, count: int = 3) -> None:
    """Draw the same control tissue each time, and one image of other tissue, with a share of the usual eosin."""
    usual = LABORATORIES[5]
    red, green, blue = (eosin * value for value in usual.eosin)
    style = replace(usual, eosin=(red, green, blue))
    folder.mkdir(parents=True)
    for index in range(count):
        tissue = draw_tissue(seed if index == 0 else 99, index, 160).concentration[None]
        write_image(folder / f"{index}.png", from_batch(render(tissue, style))[0])


@pytest.fixture(scope="module")
def fitted(model: BottleGAN, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Batch]]:
    """The batches of a lab: the first three, then three as before, or three with less and less eosin."""
    root = tmp_path_factory.mktemp("batches")
    for k in range(3):
        fill(root / "first" / f"2026-{k + 1}", 1.0, seed=k, count=8)
    for k, eosin in enumerate((0.6, 0.45, 0.3)):
        fill(root / "same" / f"2026-{k + 10}", 1.0, seed=10 + k, count=8)
        fill(root / "fading" / f"2026-{k + 10}", eosin, seed=10 + k, count=8)
    return {name: fit_batches(list_batches(root / name), model) for name in ("first", "same", "fading")}


def test_drift_is_found_where_eosin_fades_and_only_there(model: BottleGAN, fitted: dict[str, list[Batch]]) -> None:
    steady = measure_drift([*fitted["first"], *fitted["same"]], model, "lab")
    assert steady.drifted == []
    assert say_result(steady).startswith("No drift found: all 6 measured batches")
    fading = measure_drift([*fitted["first"], *fitted["fading"]], model, "lab")
    # With three baseline batches, the first step may pass for a change of tissue.
    assert fading.drifted[-2:] == ["2026-11", "2026-12"]
    assert not set(fading.drifted) & set(fading.baseline)
    assert say_result(fading).startswith("Drift found: ")
    for values in zip(*((p.code_distance, p.delta_e) for p in fading.points[3:]), strict=True):
        assert list(values) == sorted(values)
    # Losing half of the eosin is easy to see, and the patches of color show it.
    assert fading.points[4].delta_e > 3
    assert np.abs(fading.points[4].colors.astype(int) - fading.colors)[4, 0].max() > 20


def test_the_distance_between_codes_is_their_root_mean_square(model: BottleGAN) -> None:
    found = distances([batch("a", 0), batch("b", 0), batch("c", 0), batch("d", -0.2)], model)
    assert found == pytest.approx([0, 0, 0, 0.2])


def test_a_baseline_batch_is_compared_with_the_others(model: BottleGAN) -> None:
    # If it were part of the mean, the first would be only 0.2 away.
    found = distances([batch("a", 0.3), batch("b", 0), batch("c", 0), batch("d", 0.1)], model)
    assert found == pytest.approx([0.3, 0.15, 0.15, 0])
    assert distances([batch("a", 0.3)], model) == [0]


def test_a_known_style_is_the_baseline(model: BottleGAN) -> None:
    known = copy.deepcopy(model)
    known.codes.add("lab", torch.full((24,), 0.5))
    drift = measure_drift([batch("a", 0), batch("b", 0.1), batch("c", 0), batch("d", 0.5)], known, "lab")
    assert drift.known
    assert [p.code_distance for p in drift.points] == pytest.approx([0.5, 0.4, 0.5, 0])
    assert not measure_drift([batch("a", 0)], known, "another").known


def test_refused_batches_are_listed_but_not_measured(model: BottleGAN) -> None:
    blank = batch("b", 50, Verdict.REFUSED)
    drift = measure_drift([batch("a", 0), blank, batch("c", 0.1), batch("d", 0), batch("e", 1)], model, "lab")
    assert drift.baseline == ["a", "c", "d"]
    assert drift.drifted == ["e"]
    assert drift.points[1].code_distance is drift.points[1].delta_e is None
    with pytest.raises(InputError, match="no batch shows a style"):
        measure_drift([blank], model, "lab")


def test_the_limit_is_that_of_a_chart_of_individual_values() -> None:
    assert find_limit([1.0, 3.0, 2.0]) == Limit(2.0, pytest.approx(2.0 + 2.66 * 1.5))
    # A trend widens it less than the usual standard deviation would.
    assert find_limit([1.0, 2.0, 3.0, 4.0, 5.0]).upper == pytest.approx(3 + 2.66)


def test_two_baseline_batches_give_no_limit(model: BottleGAN) -> None:
    assert find_limit([1.0, 2.0]) is None
    drift = measure_drift([batch("a", 0), batch("b", 0.1), batch("c", 9)], model, "lab", baseline=2)
    assert drift.limit is None
    assert drift.drifted == []
    assert "needs 3 baseline batches, there are 2" in say_result(drift)


def test_the_colors_span_both_stains(model: BottleGAN) -> None:
    colors = mix_colors(model.reference)[0]
    assert colors[:, 0, 0].tolist() == [1, 1, 1]
    red, _, blue = (-colors.log()).unbind(0)
    # Hematoxylin, to the right, takes away red light; eosin, downward, hardly does.
    assert red[0, -1] > blue[0, -1]
    assert red[-1, 0] < blue[-1, 0]
    assert (colors.flatten(1).diff(dim=1).abs().sum(0) > 0).all()


def test_batches_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("2026-10", "2026-9", "2025-12", ".hidden"):
        (tmp_path / name).mkdir()
        write_image(tmp_path / name / "a.png", np.zeros((4, 4, 3), np.uint8))
    (tmp_path / "note.txt").touch()
    assert list(list_batches(tmp_path)) == ["2025-12", "2026-9", "2026-10"]


@pytest.mark.parametrize(("name", "message"), [("gone", "no such folder"), ("empty", "holds no sub-folder")])
def test_what_is_missing_is_named(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingError, match=message):
        list_batches(tmp_path / name)


def test_a_large_batch_is_not_read_whole(model: BottleGAN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "one", 1.0, seed=0, count=1)
    patches = list_patches(tmp_path / "one") * 100
    seen: list[int] = []

    def fake(images: Sequence[Pixels], *_: object) -> Onboarding:
        seen.append(len(images))
        return found

    found = onboard([patches[0].read_image()], to_weights(model))
    monkeypatch.setattr("bottlegan.quality.drift.onboard", fake)
    assert fit_batches({"one": patches}, model)[0].images == 100
    assert seen == [32]


def test_the_files_say_the_same(model: BottleGAN, tmp_path: Path) -> None:
    batches = [batch("a", 0), batch("b", 0.1), batch("c", 0), batch("d", 2), batch("<i>,e", 0, Verdict.REFUSED)]
    drift = measure_drift(batches, model, "lab & co")
    page = write_drift(drift, tmp_path / "out").read_text()
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "drift.csv").read_text())))
    assert [row["batch"] for row in rows] == ["a", "b", "c", "d", "<i>,e"]
    assert [row["out_of_control"] for row in rows] == ["false", "false", "false", "true", "false"]
    assert rows[4]["code_distance"] == rows[4]["delta_e"] == ""
    values = json.loads((tmp_path / "out" / "drift.json").read_text())
    assert values["drifted"] == ["d"]
    assert values["batches"][3]["code"] == [2.0] * 24
    assert f"{values['limit']['upper']:.4f}" == rows[0]["limit"]
    assert page.count("<strong>out of control</strong>") == 1
    assert "<i>" not in page
    assert "src=" not in page
    assert "lab &amp; co" in page
    assert to_csv(drift).count("\n") == 6
    assert to_json(drift) == values


def test_the_chart_marks_what_is_beyond_the_limit() -> None:
    marks = [
        Mark("a", 1.0, alarm=False, hollow=True),
        Mark("b & <c>", None, alarm=False, hollow=False),
        Mark("d", 4.0, alarm=True, hollow=False),
    ]
    drawn = ElementTree.fromstring(draw_chart(marks, [Level("limit", 2.0, alarm=True)], "a label"))  # noqa: S314
    (diamond,) = drawn.iter("rect")
    (circle,) = drawn.iter("circle")
    assert [title.text for title in drawn.iter("title")] == ["a: 1", "b & <c>: refused", "d: 4, out of control"]
    (limit,) = (line for line in drawn.iter("line") if line.get("stroke-dasharray"))
    top = float(str(diamond.get("transform")).split()[1].split(")")[0])
    assert top < float(limit.get("y1")) < float(circle.get("cy"))


@pytest.mark.parametrize("highest", [0.0031, 0.07, 1.0, 3.0, 9.99, 47.0])
def test_ticks_are_round_and_few(highest: float) -> None:
    step = choose_step(highest)
    assert 3 <= highest / step <= 8
    assert f"{step:e}"[0] in "125"
