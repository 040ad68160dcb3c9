import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bottlegan.core.errors import InputError
from bottlegan.core.progress import Silent
from bottlegan.imaging.files import read_image
from bottlegan.models.files import load_model
from bottlegan.reproduce import classical, paired, table2
from bottlegan.reproduce.classical import attempt
from bottlegan.reproduce.figure2 import run_figure2
from bottlegan.reproduce.paired import Half, find_peso, load_halves
from bottlegan.reproduce.table2 import FORMS, METHODS, plan, run_table2
from bottlegan.reproduce.table2_files import Table2
from bottlegan.training.gan import PRESETS


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Table2, Path]:
    out = tmp_path_factory.mktemp("table2")
    return run_table2("smoke", out), out


def smoke_halves() -> tuple[Half, Half]:
    return load_halves("smoke", None, 0, Silent())


def untrained(*_: object, **__: object) -> None:
    raise AssertionError("nothing is left to be trained")


def test_every_row_is_there_and_finite(made: tuple[Table2, Path]) -> None:
    table, _ = made
    assert [row.key for row in table.rows] == [method.key for method in METHODS]
    for row in table.rows:
        if row.key.startswith("torchstain") and not classical.has_torchstain():
            assert "not installed" in row.note
            continue
        assert row.styles == 6
        numbers = [value for value in vars(row).values() if isinstance(value, int | float)]
        assert all(math.isfinite(value) for value in numbers)
        for name in ("mse_mean", "mse_median", "mse_p90", "psnr", "ssim", "fid", "swapped", "degenerate", "seconds"):
            assert getattr(row, name) is not None
        assert (row.restain_mean is None) == row.key.startswith("torchstain")
    by_key = {row.key: row for row in table.rows}
    assert by_key["robust-macenko"].mse_mean < 0.5 * by_key["identity"].mse_mean
    assert by_key["bottlegan"].mse_mean < by_key["identity"].mse_mean, "the trained model must be the one scored"
    assert by_key["bottlegan"].parameters > by_key["warm-many-one"].parameters > 0


def test_the_identity_row_is_what_hand_computation_gives(made: tuple[Table2, Path]) -> None:
    row = made[0].rows[0]
    errors = {}
    for half in smoke_halves():
        for name, styled, truth in zip(half.names, half.styled, half.truths, strict=True):
            errors[name] = float(np.mean((styled / 255.0 - truth / 255.0) ** 2))
    mse = list(errors.values())
    assert {name: score.mse for name, score in row.each.items()} == pytest.approx(errors, rel=1e-5)
    assert row.mse_mean == pytest.approx(np.mean(mse), rel=1e-5)
    assert row.mse_median == row.restain_median == pytest.approx(np.median(mse), rel=1e-5)
    assert row.mse_p90 == pytest.approx(np.quantile(mse, 0.9), rel=1e-5)
    assert row.psnr == pytest.approx(np.mean(-10 * np.log10(mse)), rel=1e-5)
    assert row.reconstruction == 0
    assert row.parameters == 0


def test_the_files_say_the_same_and_how_to_make_them_again(made: tuple[Table2, Path]) -> None:
    table, out = made
    values = json.loads((out / "table2.json").read_text())
    assert [row["mse_mean"] for row in values["rows"] if row["styles"]] == [r.mse_mean for r in table.rows if r.styles]
    with (out / "table2.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["method"] for line in lines] == [row.method for row in table.rows]
    assert float(lines[0]["mse_mean"]) == table.rows[0].mse_mean
    page = (out / "table2.md").read_text()
    assert f"bottlegan reproduce table2 --scale smoke --seed 0 --out {out}" in page
    assert all(f"| {row.method} |" in page for row in table.rows)


def test_a_rerun_trains_nothing_and_makes_missing_rows_only(
    made: tuple[Table2, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, out = made
    monkeypatch.setattr(table2, "train", untrained)
    assert run_table2("smoke", out) == table
    values = json.loads((out / "table2.json").read_text())
    del values["rows"][0]
    (tmp_path / "table2.json").write_text(json.dumps(values))
    again = run_table2("smoke", tmp_path)
    assert [row.key for row in again.rows] == [row.key for row in table.rows]
    assert again.rows[0].each == table.rows[0].each
    assert again.rows[1:] == table.rows[1:]


def test_what_was_made_before_an_interrupt_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table2, "train", untrained)
    with pytest.raises(AssertionError, match="nothing is left"):
        run_table2("smoke", tmp_path)
    assert [row["key"] for row in json.loads((tmp_path / "table2.json").read_text())["rows"]] == [
        "identity",
        "robust-macenko",
    ]


def test_a_table_of_another_seed_is_not_overwritten(made: tuple[Table2, Path]) -> None:
    before = (made[1] / "table2.json").read_bytes()
    with pytest.raises(InputError, match="choose another --out"):
        run_table2("smoke", made[1], seed=1)
    assert (made[1] / "table2.json").read_bytes() == before


def test_models_are_saved_by_half_and_no_half_sees_its_own_tissue(made: tuple[Table2, Path]) -> None:
    a, b = smoke_halves()
    assert not set(a.names) & set(b.names)
    for one, other in ((a, b), (b, a)):
        assert all(np.array_equal(x, y) for x, y in zip(one.pool, other.truths, strict=True))
        assert not any(np.array_equal(x, y) for x in one.pool for y in one.truths)
        assert load_model(made[1] / f"bottlegan-{one.label}.safetensors").codes.names == list(one.names)


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_rows_of_one_start_differ_in_nothing_but_the_model(start: str) -> None:
    for scale in ("smoke", "cpu", "paper"):
        plans = [plan(f"{start}-{form}", scale) for form in FORMS]
        assert len({replace(each, model=PRESETS["default"].model) for each in plans}) == 1
        assert all(each.begin_at_maps is False for each in plans if each.warm_steps), "no row holds the answer"
        if start == "warm":
            assert plans[0].batch * plans[0].pixels == plans[0].crops * plans[0].crop ** 2
        else:
            assert all(each.warm_steps == 0 and each.adversarial_weight > 0 for each in plans)
    assert plan("bottlegan", "cpu").model == PRESETS["default"].model
    assert plan("bottlegan", "paper").steps == PRESETS["paper"].steps
    assert plan(f"{start}-unet", "cpu").model.generator.kind == "unet"
    many = plan(f"{start}-many-many", "cpu").model
    assert (many.paradigm, many.generator.statistics) == ("many-many", "instance"), "it must see where images come from"


def test_a_missing_package_is_a_row_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table2, "has_torchstain", lambda: False)
    monkeypatch.setattr(table2, "METHODS", [m for m in METHODS if m.key in ("identity", "torchstain-macenko")])
    row = run_table2("smoke", tmp_path).rows[1]
    assert "not installed" in row.note
    assert row.mse_mean is None
    assert "| torchstain Macenko | - |" in (tmp_path / "table2.md").read_text()


def test_a_row_on_a_few_styles_says_so_beside_what_others_reach_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = table2.StainMethod("few", "some", table2.build_identity, styles=2)
    monkeypatch.setattr(table2, "METHODS", [METHODS[0], few])
    whole, part = run_table2("smoke", tmp_path).rows
    assert (part.styles, part.note, part.fid) == (2, "on 2 styles only", None)
    mean = f"{np.mean([whole.each[name].mse for name in part.each]):.5f}"
    assert (
        f"on the 2 styles of some alone: some {mean}, nothing (identity) {mean}."
        in (tmp_path / "table2.md").read_text()
    )


def test_a_failure_counts_as_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = table2.StainMethod(
        "failing", "failing", lambda setting, half: table2.Maps(lambda name, image: None, None)
    )
    monkeypatch.setattr(table2, "METHODS", [METHODS[0], failing])
    nothing, failed = run_table2("smoke", tmp_path).rows
    assert failed.mse_mean == nothing.mse_mean
    assert "failed on 6 styles" in failed.note


@pytest.mark.parametrize("broken", [lambda image: image / 0, lambda image: image.reshape(7)])
def test_a_method_that_raises_or_gives_nothing_finite_has_failed(broken) -> None:
    assert attempt(broken, torch.zeros(3, 4, 4)) is None
    assert attempt(lambda image: image, torch.zeros(3, 4, 4)) is not None


def test_data_is_found_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(paired.VARIABLE, raising=False)
    with pytest.raises(InputError, match="with --data or BOTTLEGAN_PESO"):
        load_halves("cpu", None, 0, Silent())
    monkeypatch.setenv(paired.VARIABLE, "elsewhere")
    assert find_peso(None) == Path("elsewhere")
    assert find_peso(Path("given")) == Path("given")


def test_figure_2_shows_every_style_with_the_saved_models(
    made: tuple[Table2, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table2, "train", untrained)
    path = run_figure2("smoke", made[1])
    figure, detail = read_image(path), read_image(path.with_name("figure2_detail.png"))
    assert figure.shape[1] > 3 * figure.shape[0] * 0.9
    assert detail.shape[1] == 6 * 162
    # Normalized tiles are more alike than the styles are.
    blocks = np.split(detail, 4)
    spread = [
        np.std([tile[28:188, :160].mean((0, 1)) for tile in np.split(block, 6, axis=1)], axis=0).sum()
        for block in blocks
    ]
    assert spread[2] < spread[0]
