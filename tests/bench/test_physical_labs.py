import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from bottlegan.bench import physical_labs as bench
from bottlegan.bench.normalize import MapPixels
from bottlegan.bench.physical_labs import AS_THEY_COME, FLOOR, LEAST, OPPOSITE, LabPair, Score
from bottlegan.bench.real_methods import NOTHING, OURS
from bottlegan.cli import main as cli
from bottlegan.core.errors import InputError
from bottlegan.core.progress import Silent
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.document import PRIOR
from bottlegan.models.paradigms import BottleGAN
from bottlegan.reproduce import paired
from bottlegan.simulation.organs import Patch, draw_patch
from bottlegan.stain.affine import AffineMap
from bottlegan.stain.density import map_images

SIDE = 96


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, pool: list[Patch]) -> None:
    monkeypatch.setattr(bench, "SIDE", SIDE)
    monkeypatch.setattr(bench, "draw_pool", lambda progress: pool)


@pytest.fixture(scope="module")
def pool() -> list[Patch]:
    return [patch for patch in (draw_patch(bench.SEED, index, SIDE) for index in range(30)) if not patch.glass.all()]


@pytest.fixture(scope="module")
def pairs(pool: list[Patch]) -> list[LabPair]:
    return [bench.draw_pair(pool, index, AS_THEY_COME) for index in range(3)]


def cheat(pair: LabPair) -> MapPixels:
    """Return what looks up the truth."""
    return lambda image: next(b for a, b in zip(pair.scored_a, pair.scored_b, strict=True) if a is image)


def fail(pair: LabPair) -> MapPixels:
    raise InputError("the lab is refused")


def rows_of(figures: object, test: str) -> dict[str, dict]:
    return figures["tests"][test]["rows"]


def test_patches_of_mostly_glass_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(bench, "POOL", 30)
    monkeypatch.setattr(bench, "SIDE", 64)
    drawn = bench.draw_pool(Silent())
    assert len(drawn) == 30
    assert min(1 - patch.glass.mean() for patch in drawn) >= bench.LEAST_TISSUE
    assert any(draw_patch(bench.SEED, index, 64).glass.mean() > 0.6 for index in range(30)), (
        "there was none to leave out"
    )


@pytest.mark.parametrize("test", [AS_THEY_COME, OPPOSITE])
def test_no_patch_is_shown_twice(test: str) -> None:
    nuclei = list(np.random.default_rng(0).random(30))
    for index in range(10):
        a, b, both = bench.choose_tissue(np.random.default_rng(index), nuclei, index, test)
        assert (len(a), len(b), len(both)) == (bench.FITTED, bench.FITTED, bench.SCORED)
        assert len({*a, *b, *both}) == 2 * bench.FITTED + bench.SCORED


def test_opposite_composition_is_opposite_and_alternates() -> None:
    nuclei = np.random.default_rng(0).random(30)
    for index in range(6):
        a, b, _ = bench.choose_tissue(np.random.default_rng(index), list(nuclei), index, OPPOSITE)
        poor, rich = (a, b) if index % 2 == 0 else (b, a)
        assert nuclei[poor].max() < np.quantile(nuclei, 1 / 3)
        assert nuclei[rich].min() > np.quantile(nuclei, 2 / 3)


def test_both_labs_show_the_same_tissue_with_noise_of_their_own(pool: list[Patch]) -> None:
    first, again = (bench.draw_pair(pool, 1, AS_THEY_COME) for _ in range(2))
    np.testing.assert_equal(first.scored_a, again.scored_a)
    np.testing.assert_equal(first.fitted_b, again.fitted_b)
    for a, b in zip(first.scored_a, first.scored_b, strict=True):
        assert not np.array_equal(a, b)
        assert np.corrcoef(a.mean(2).ravel(), b.mean(2).ravel())[0, 1] > 0.8
    other = bench.draw_pair(pool, 1, OPPOSITE)
    assert not np.array_equal(other.fitted_a[0], first.fitted_a[0])


def test_the_paired_map_of_a_lab_with_itself_changes_nothing(pairs: list[LabPair]) -> None:
    for pair in pairs:
        same = replace(pair, scored_b=pair.scored_a)
        assert bench.score_pair(bench.fit_paired, same).mse < 1e-7


def test_the_paired_map_finds_an_affine_map(pairs: list[LabPair]) -> None:
    true = AffineMap(torch.tensor([[[0.8, 0.1, 0.0], [0.1, 0.7, 0.1], [0.0, 0.2, 0.9]]]), torch.full((1, 3), 0.05))
    mapped = [from_batch(map_images(true, to_batch(image)))[0] for image in pairs[0].scored_a]
    pair = replace(pairs[0], scored_b=mapped)
    # What rounding to levels alone leaves is 1e-6.
    assert bench.score_pair(bench.fit_paired, pair).mse < 1e-5
    assert bench.score_pair(bench.BASES[NOTHING], pair).mse > 1e-3


def test_no_affine_map_is_much_better_than_the_one_of_least_error(pairs: list[LabPair]) -> None:
    for pair in pairs:
        closed, least, more = (
            bench.score_pair(partial(bench.fit_paired, steps=steps), pair).mse for steps in (0, 4, 20)
        )
        assert least <= closed * 1.001, "only rounding to levels may raise it"
        assert least == pytest.approx(more, rel=0.01)


def test_the_truth_has_a_ratio_of_0_and_nothing_is_never_worse_than_nothing() -> None:
    figures = bench.bench_physical(3, methods={"truth": cheat, "negative": lambda pair: lambda image: 255 - image})
    json.dumps(figures, allow_nan=False)
    for test in (AS_THEY_COME, OPPOSITE):
        rows = rows_of(figures, test)
        ratio = "ratio to paired affine map"
        assert rows["truth"][ratio] == {"mean": 0, "90th percentile": 0}
        assert rows[FLOOR][ratio] == {"mean": 1, "90th percentile": 1}
        assert rows[LEAST][ratio]["mean"] <= 1
        assert rows[NOTHING][ratio]["mean"] > 1
        assert (rows["truth"]["worse than nothing"], rows[NOTHING]["worse than nothing"]) == (0, 0)
        assert rows["negative"]["pairs worse than nothing"] == [0, 1, 2]
        assert all(row["failed"] == 0 for row in rows.values())


def test_a_failure_is_counted_and_leaves_the_image_as_it_is(pairs: list[LabPair]) -> None:
    def fail_once(pair: LabPair) -> MapPixels:
        def convert(image: Pixels) -> Pixels:
            if image is pair.scored_a[0]:
                raise ValueError("no tissue")
            return cheat(pair)(image)

        return convert

    pair = pairs[0]
    assert bench.score_pair(fail, pair) == Score(bench.measure_error(pair.scored_a, pair.scored_b), failed=True)
    once = bench.score_pair(fail_once, pair)
    assert once.failed
    first = bench.measure_error(pair.scored_a[:1], pair.scored_b[:1])
    assert once.mse == pytest.approx(first / bench.SCORED)


def test_figures_are_those_of_the_errors() -> None:
    def scores(*errors: float) -> list[Score]:
        return [Score(error, failed=error > 5) for error in errors]

    rows = bench.summarize({NOTHING: scores(2, 2, 2), FLOOR: scores(1, 1, 4), "some": scores(1, 3, 8)})
    assert rows["some"]["MSE"] == {"mean": 4, "median": 3, "90th percentile": pytest.approx(7), "worst": 8}
    assert rows["some"]["ratio to paired affine map"]["mean"] == 2
    assert rows["some"]["ratio to paired affine map"]["90th percentile"] == pytest.approx(7 / 3.4)
    assert (rows["some"]["worse than nothing"], rows["some"]["failed"]) == (2, 1)


def test_a_pair_with_a_blank_lab_counts_as_failed(pairs: list[LabPair]) -> None:
    fit = bench.fit_ours(BottleGAN.load(PRIOR))
    blank = [np.full((SIDE, SIDE, 3), 255, np.uint8)]
    unchanged = bench.score_pair(bench.BASES[NOTHING], pairs[0]).mse
    for pair in (replace(pairs[0], fitted_a=blank), replace(pairs[0], fitted_b=blank)):
        assert bench.score_pair(fit, pair) == Score(unchanged, failed=True)


def test_ours_brings_labs_together() -> None:
    figures = bench.bench_physical(3, methods={OURS: bench.fit_ours(BottleGAN.load(PRIOR))})
    rows = rows_of(figures, AS_THEY_COME)
    assert rows[OURS]["MSE"]["mean"] < rows[NOTHING]["MSE"]["mean"] / 2
    assert rows[OURS]["MSE"]["mean"] > rows[LEAST]["MSE"]["mean"]


def test_the_closed_form_goes_from_one_lab_to_the_other(pairs: list[LabPair]) -> None:
    fit = bench.fit_closed_form(bench.draw_reference())
    same = replace(pairs[0], fitted_b=pairs[0].fitted_a, scored_b=pairs[0].scored_a)
    assert bench.score_pair(fit, same).mse < 1e-6, "there and back again"
    assert bench.score_pair(fit, pairs[0]).mse != bench.score_pair(bench.BASES[NOTHING], pairs[0]).mse


def test_peers_aim_at_all_patches_of_the_second_lab(pairs: list[LabPair]) -> None:
    aims: list[Pixels] = []

    def peer(reference: Pixels) -> MapPixels:
        aims.append(reference)
        return lambda image: 255 - image

    convert = bench.fit_peer(peer)(pairs[0])
    np.testing.assert_equal(convert(pairs[0].scored_a[0]), 255 - pairs[0].scored_a[0])
    assert aims[0].shape == (SIDE, bench.FITTED * SIDE, 3)
    np.testing.assert_equal(aims[0][:, SIDE : 2 * SIDE], pairs[0].fitted_b[1])


def test_a_peer_that_is_missing_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError("not installed")

    monkeypatch.setattr(bench, "find_package", missing)
    methods = bench.list_methods()
    assert methods["torchstain Macenko"] == "not installed"
    figures = bench.bench_physical(1, methods={"a peer": "not installed"})
    assert rows_of(figures, OPPOSITE)["a peer"] == {"note": "not installed"}
    with pytest.raises(InputError, match="at least one pair"):
        bench.bench_physical(0)


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["bottlegan", "bench", "onboard", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    if ended.value.code:
        raise InputError(f"status {ended.value.code}")


def test_the_command_says_that_there_is_no_peso(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(paired.VARIABLE, raising=False)
    monkeypatch.setattr(bench, "list_methods", lambda: {"truth": cheat, "a peer": "not installed"})
    file, picture = tmp_path / "bench.json", tmp_path / "reliability.svg"
    run(monkeypatch, "--pairs", "2", "--json", file, "--picture", picture)
    told = " ".join(capsys.readouterr().out.split())
    assert "PESO styles are skipped" in told
    assert "2 pairs of physical labs, opposite composition" in told
    assert "a peer: not installed" in told
    assert "Rank correlation of expected and true error" in told
    assert picture.exists()
    figures = json.loads(file.read_text())
    assert figures["PESO styles"] is None
    assert figures["physical labs"]["pairs"] == 2
    assert figures["reliability"]["H&E labs"] + figures["reliability"]["other labs"] == 4


def test_what_cannot_be_done_is_said_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "bench_physical", lambda *_: pytest.fail("measured"))
    with pytest.raises(InputError, match="status 2"):
        run(monkeypatch, "--data", tmp_path / "none")
    assert str(tmp_path / "none") in capsys.readouterr().err
    with pytest.raises(InputError, match="status 2"):
        run(monkeypatch, "--picture", tmp_path / "picture.png")
    assert ".svg" in capsys.readouterr().err
