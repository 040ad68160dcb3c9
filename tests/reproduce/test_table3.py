from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottlegan.core.errors import InputError
from bottlegan.core.seeding import numpy_stream
from bottlegan.data.labels import Labeled
from bottlegan.federated.client.staining import Styles, stain_with
from bottlegan.imaging.files import write_image
from bottlegan.imaging.tensors import to_batch
from bottlegan.reproduce import table3
from bottlegan.reproduce.hospitals import FOLDS, MOST_IMAGES, Hospital, deal, draw_hospitals, read_hospitals
from bottlegan.reproduce.table3 import METHODS, SCALES, Table3, make_run, onboard_visitors
from bottlegan.reproduce.table3_files import Scores, Table3Run, to_csv, to_markdown

NAMES = {method.key: method.name for method in METHODS}


def hospital(name: str, count: int) -> Hospital:
    return Hospital(
        name, [Labeled(np.full((2, 2, 3), row, np.uint8), np.zeros((2, 2), np.uint8)) for row in range(count)]
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=2 * FOLDS, max_size=14), st.integers(0, 99))
def test_every_lab_is_left_out_once_and_nothing_is_trained_and_tested_on(sizes: list[int], seed: int) -> None:
    labs = [hospital(f"lab-{row}", size) for row, size in enumerate(sizes)]
    left_out: list[str] = []
    for fold in range(FOLDS):
        dealt = deal(labs, seed, fold)
        left_out += [lab.name for lab in dealt.visitors]
        assert not {lab.name for lab in dealt.visitors} & {lab.name for lab in dealt.members}
        assert len(dealt.members) + len(dealt.visitors) == len(labs)
        assert sum(bool(lab.labeled) for lab in dealt.members) <= len(dealt.members) // 2
        for lab in dealt.members:
            trained = {int(image[0, 0, 0]) for image in lab.train} | {int(e.image[0, 0, 0]) for e in lab.labeled}
            tested = {int(each.image[0, 0, 0]) for each in lab.test}
            assert not trained & tested
            assert len(trained) + len(tested) == sizes[int(lab.name.split("-")[1])]
            assert trained
    assert sorted(left_out) == sorted(lab.name for lab in labs)


def test_only_labs_with_masks_count_and_none_drowns_the_others(tmp_path: Path) -> None:
    rows = ["image,mask,lab,what"]
    for lab in range(2 * FOLDS + 1):
        for index in range(MOST_IMAGES + 3 if lab == 0 else 1):
            image = tmp_path / f"{lab}-{index}.png"
            write_image(image, np.full((4, 4, 3), 200, np.uint8))
            write_image(tmp_path / f"m{lab}-{index}.png", np.full((4, 4, 3), 255, np.uint8))
            rows.append(f"{image.name},{'' if lab == 1 else f'm{lab}-{index}.png'},lab-{lab},nuclei")
    (tmp_path / "index.csv").write_text("\n".join(rows) + "\n")
    found = read_hospitals(tmp_path)
    assert [each.name for each in found] == [f"lab-{lab}" for lab in range(2 * FOLDS + 1) if lab != 1]
    assert len(found[0].images) == MOST_IMAGES
    assert (found[0].images[0].truth == 1).all()
    (tmp_path / "index.csv").write_text("\n".join(rows[:-1]) + "\n")
    with pytest.raises(InputError, match=r"holds 5 labs with masks of nuclei; table3 needs at least 6"):
        read_hospitals(tmp_path)


def test_a_lab_that_took_no_part_is_normalized_by_what_it_finds_itself() -> None:
    dealt = deal(draw_hospitals(), 0, 0)
    styles = Styles(onboard_visitors(dealt.visitors))
    config = replace(SCALES["smoke"], mode="normalize")
    shown = [stain_with(config, styles, lab.name).present(lab.test[0].image) for lab in dealt.visitors]
    means = [to_batch(each).mean((0, 2, 3)) for each in shown]
    before = [to_batch(lab.test[0].image).mean((0, 2, 3)) for lab in dealt.visitors]
    assert (means[0] - means[1]).abs().mean() < (before[0] - before[1]).abs().mean()


@pytest.mark.parametrize("key", ["bottlegan-normalize", "local", "reinhard"])
def test_a_run_scores_labs_that_took_part_and_labs_that_did_not(key: str, tmp_path: Path) -> None:
    if key == "reinhard":
        pytest.importorskip("torchstain")
    experiment = Table3("smoke", tmp_path)
    experiment.runs.mkdir()
    run = make_run((key, 0, 0), experiment)
    assert len(run.visitors) == 2
    assert len(run.labeled) == 2
    assert set(run.visitors) <= run.labs.keys()
    assert len(run.labs) == (4 if key == "local" else 6), "labs that train alone are scored alone"
    assert not experiment.path(key, 0, 0).with_suffix("").exists(), "a finished run needs no checkpoint"
    page = experiment.write().read_text()
    assert f"| {NAMES[key]} | 1 | 2 | {run.left_out.iou:.3f} ± " in page


def test_a_lab_whose_style_is_refused_is_left_out_and_scored_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labs, odd = draw_hospitals(), deal(draw_hospitals(), 0, 0).members[0].name
    leaves = numpy_stream(0, "leaves")

    def turn_green(hospital: Hospital) -> Hospital:
        images = [leaves.integers((20, 90, 10), (70, 200, 50), each.image.shape) for each in hospital.images]
        return Hospital(
            hospital.name,
            [Labeled(image.astype(np.uint8), old.truth) for image, old in zip(images, hospital.images, strict=True)],
        )

    monkeypatch.setattr(
        table3, "recall_hospitals", lambda _: [turn_green(each) if each.name == odd else each for each in labs]
    )
    experiment = Table3("smoke", tmp_path)
    experiment.runs.mkdir()
    run = make_run(("bottlegan-normalize", 0, 0), experiment)
    assert run.refused == (odd,)
    assert len(run.labs) == 6
    assert make_run(("fedavgm", 0, 0), experiment).refused == ()
    assert f"| {odd} |" in experiment.write().read_text()
    visitors = [turn_green(labs[0]).visit(), labs[1].visit()]
    assert onboard_visitors(visitors).document.styles == (labs[1].name,)


def test_what_cannot_be_made_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no row oracle"):
        Table3("smoke", tmp_path, rows=("oracle",))
    with pytest.raises(InputError, match="as --data"):
        Table3("cpu", tmp_path)
    with pytest.raises(InputError, match="no scale paper"):
        Table3("paper", tmp_path, tmp_path)


def made(key: str, fold: int, ious: dict[str, float]) -> Table3Run:
    labs = {lab: Scores(iou=iou, dice=iou, ece=0.1, nll=0.5) for lab, iou in ious.items()}
    first = next(iter(labs.values()))
    return Table3Run(
        key=key,
        seed=0,
        fold=fold,
        held_out=first,
        left_out=first,
        labs=labs,
        labeled=("d",),
        visitors=tuple(lab for lab in labs if lab != "d"),
        seconds=1.0,
        commit="0",
    )


def test_intervals_are_over_labs_and_differences_of_the_same_labs_and_folds() -> None:
    runs = [made("fedavgm", 0, {"a": 0.3, "b": 0.4, "d": 0.9}), made("fedavgm", 1, {"c": 0.5, "d": 0.7})]
    runs += [made("hed", 0, {"a": 0.35, "b": 0.46, "d": 0.9}), made("hed", 1, {"c": 0.57, "d": 0.8})]
    runs += [made("restain", 0, {"a": 0.2, "b": 0.3, "d": 0.9})]
    taken, visited = to_markdown(runs, {**NAMES, "restain": "R"}, "cpu").split("## Labs that took no part")
    # .05, .06, .07: t(.975, 2) = 4.303 times .01 / sqrt(3); and .3, .4, .5: times .1 / sqrt(3)
    assert "| FedAvgM | 2 | 3 | 0.400 ± 0.248 |" in visited
    assert "| +0.060 ± 0.025 | +0.000 ± 0.000 | +0.000 ± 0.000 | 1 |" in visited
    # two labs, each lower by .1, in one fold
    assert "| R | 1 | 2 | 0.250 ± 0.635 |" in visited
    assert "| -0.100 ± 0.000 | +0.000 ± 0.000 | +0.000 ± 0.000 | 1 |" in visited
    # one lab took part, in two folds
    assert "| FedAvgM | 2 | 1 | 0.800 |" in taken
    assert "| FedAvgM + HED jitter | 2 | 1 | 0.850 | 0.850 | 0.100 | 0.500 | +0.050 | +0.000 | +0.000 | 1 |" in taken
    assert to_csv(runs).count("\n") == 1 + sum(len(run.labs) for run in runs)
