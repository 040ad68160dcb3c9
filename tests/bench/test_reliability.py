from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from torch import Tensor

from bottlegan.bench import reliability as bench
from bottlegan.bench.reliability import JudgedLab, draw_reliability, summarize
from bottlegan.core.errors import InputError
from bottlegan.imaging.files import Pixels
from bottlegan.models.document import PRIOR
from bottlegan.models.paradigms import BottleGAN
from bottlegan.onboarding.verdict import GOOD_ERROR, Verdict

SVG = "{http://www.w3.org/2000/svg}"


def judged(expected: Sequence[float], true: Sequence[float], verdict: Verdict = Verdict.GOOD) -> list[JudgedLab]:
    return [JudgedLab(True, verdict, *pair) for pair in zip(expected, true, strict=True)]


OTHER = JudgedLab(False, Verdict.REFUSED, 5.0, np.nan)


def test_only_the_order_matters_to_the_rank_correlation() -> None:
    expected = np.random.default_rng(0).random(40)
    assert bench.correlate_ranks(expected, np.exp(5 * expected)) == pytest.approx(1)
    assert bench.correlate_ranks(expected, 1 / expected) == pytest.approx(-1)
    assert bench.correlate_ranks(expected, np.ones(40)) is None
    assert bench.correlate_ranks(expected[:1], expected[:1]) is None


def test_the_factor_tells_what_ranks_cannot() -> None:
    true = np.array([3.0, 5.0, 9.0])
    assert bench.measure_factor(true, true) == pytest.approx(1)
    assert bench.measure_factor(2 * true, true) == pytest.approx(2)
    assert bench.measure_factor(true / 2, true) == pytest.approx(2)


def test_deciles_are_of_expected_error() -> None:
    expected = np.random.default_rng(0).permutation(np.arange(1.0, 101))
    deciles = summarize(judged(expected, 3 * expected))["deciles"]
    assert [group["labs"] for group in deciles] == [10] * 10
    assert [group["expected"] for group in deciles] == pytest.approx(np.arange(5.5, 100, 10))
    assert [group["true"] for group in deciles] == pytest.approx(3 * np.arange(5.5, 100, 10))
    assert deciles[0]["true, 10th percentile"] == pytest.approx(3 * 1.9)
    assert deciles[0]["true, 90th percentile"] == pytest.approx(3 * 9.1)


def test_verdicts_are_counted_among_labs_of_either_kind() -> None:
    good, bad = judged(range(1, 7), range(1, 7)), judged([30.0], [50.0], Verdict.UNCERTAIN)
    missed = JudgedLab(False, Verdict.UNCERTAIN, 4.0, np.nan)
    figures = summarize([*good, *bad, *judged([40.0], [90.0], Verdict.REFUSED), OTHER, OTHER, missed])
    assert (figures["H&E labs"], figures["other labs"]) == (8, 3)
    assert (figures["H&E labs refused"], figures["other labs not refused"]) == (1, 1)
    verdicts = figures["verdicts"]
    assert [verdicts[each]["share"] for each in ("good", "uncertain", "refused")] == [6 / 8, 1 / 8, 1 / 8]
    assert verdicts["good"]["true error, median"] == 3.5
    assert verdicts["good"]["true error, 90th percentile"] == pytest.approx(5.5)
    assert verdicts["uncertain"]["true error, median"] == 50


def test_without_labs_there_are_no_figures() -> None:
    figures = summarize([OTHER])
    assert figures["rank correlation"] is None
    assert figures["verdicts"]["good"] == {
        "share": None,
        "true error, median": None,
        "true error, 90th percentile": None,
    }
    with pytest.raises(InputError, match="no H&E lab"):
        draw_reliability(figures, Path("none.svg"))
    with pytest.raises(InputError, match="at least one lab"):
        bench.bench_reliability(0)


def test_the_true_error_is_the_mean_of_both_ways() -> None:
    class Shift:
        def __call__(self, images: Tensor) -> Tensor:
            return images + 10 / 255

        def restain(self, images: Tensor) -> Tensor:
            return images - 20 / 255

    image: Pixels = np.full((4, 4, 3), 100, np.uint8)
    assert bench.measure_error(Shift(), [image, image], [image, image]) == pytest.approx(15)
    # The root is of the mean over all patches.
    assert bench.measure_error(Shift(), [image, image], [image, image + np.uint8(20)]) == pytest.approx(
        (10 + np.sqrt((20**2 + 0) / 2)) / 2
    )


def test_a_lab_is_known_by_three_patches_and_judged_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, bool]] = []
    onboard, measure = bench.onboard, bench.measure_error

    def count_shown(images: Sequence[Pixels], model: BottleGAN) -> object:
        seen.append((len(images), 0, False))
        return onboard(images, model)

    def count_scored(normalizer: bench.Normalizer, images: Sequence[Pixels], truth: Sequence[Pixels]) -> float:
        seen[-1] = (seen[-1][0], len(images), normalizer.refused)
        return measure(normalizer, images, truth)

    monkeypatch.setattr(bench, "onboard", count_shown)
    monkeypatch.setattr(bench, "measure_error", count_scored)
    model = BottleGAN.load(PRIOR)
    labs = bench.judge_labs(model, 3, seed=1)
    assert [lab.is_he for lab in labs] == [scored > 0 for _, scored, _ in seen]
    assert all(shown == 3 and scored in (0, 8) and not refused for shown, scored, refused in seen)
    assert all(np.isnan(lab.true) != lab.is_he for lab in labs)
    assert all(lab.expected > 0 and 0 < lab.true < 255 for lab in labs if lab.is_he)


def test_the_picture_is_svg_with_calibrated_labs_on_the_diagonal(tmp_path: Path) -> None:
    errors = np.random.default_rng(0).uniform(2, 40, 200)
    figures, file = summarize(judged(errors, errors)), tmp_path / "picture.svg"
    draw_reliability(figures, file)
    root = ElementTree.parse(file).getroot()  # noqa: S314 - we wrote it
    assert root.tag == f"{SVG}svg"
    lines = {line.get("class"): line for line in root.iter(f"{SVG}line")}
    x1, y1, x2, y2 = (float(lines["diagonal"].get(key)) for key in ("x1", "y1", "x2", "y2"))
    circles = [(float(circle.get("cx")), float(circle.get("cy"))) for circle in root.iter(f"{SVG}circle")]
    assert len(circles) == 10
    for x, y in circles:
        assert y == pytest.approx(y1 + (x - x1) / (x2 - x1) * (y2 - y1), abs=0.2)
    # The verdict's line is at the position of the errors.
    (first, *_, last), means = circles, [group["expected"] for group in figures["deciles"]]
    share = (GOOD_ERROR - means[0]) / (means[-1] - means[0])
    assert float(lines["limit"].get("x1")) == pytest.approx(first[0] + share * (last[0] - first[0]), abs=0.3)
    drawn = file.read_text()
    assert "prefers-color-scheme: dark" in drawn
    assert f"good below {GOOD_ERROR:.4g} levels" in drawn


def test_labs_do_not_depend_on_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, int, int]] = []

    def draw(seed: int, batch: int, count: int) -> list[tuple[int, int]]:
        drawn.append((seed, batch, count))
        return [(batch, index) for index in range(count)]

    monkeypatch.setattr(bench, "draw_labs", draw)
    monkeypatch.setattr(bench, "BATCH", 4)
    assert list(bench._draw(9, 5)) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]
    assert drawn == [(5, 0, 4), (5, 1, 4), (5, 2, 1)]
