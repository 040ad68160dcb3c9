from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bottlegan.core.errors import InputError
from bottlegan.federated.client.client import Client
from bottlegan.federated.client.staining import Styles
from bottlegan.federated.client.training import Lab
from bottlegan.federated.protocol.exchange import Reply, Request
from bottlegan.imaging.files import Pixels
from bottlegan.models.weights import ModelWeights
from bottlegan.reproduce.federations import obtain_styles
from bottlegan.reproduce.figure3 import SHOWN, write_figure
from bottlegan.reproduce.pseudo_labels import count, summarize
from bottlegan.reproduce.runs import SEEDS, run_table
from bottlegan.reproduce.table1 import FOLDS, Table1, make_run
from bottlegan.reproduce.table1_files import Point, Scores, Table1Run, to_csv, to_markdown
from bottlegan.reproduce.table1_methods import METHODS, SWEEP, find_stain, plan_training
from bottlegan.reproduce.world import World, draw_world

BY_KEY = {method.key: method for method in METHODS}


@pytest.fixture(scope="module")
def world() -> World:
    return draw_world("smoke", "wide", None, 0, 0)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Table1:
    experiment = Table1("smoke", tmp_path_factory.mktemp("table1"), styles="wide")
    experiment.runs.mkdir()
    return experiment


@pytest.fixture(scope="module")
def styles(world: World, smoke: Table1) -> ModelWeights:
    return obtain_styles(world.labs("own"), 0, smoke.runs / "styles-code-seed0-fold0.safetensors")


def labs_of(key: str, world: World, styles: ModelWeights) -> dict[str, Lab]:
    method = BY_KEY[key]
    given, config = world.labs(method.stained), plan_training(method, "smoke")
    stain = find_stain(method, given, world.reference_set())
    return {
        each.name: Lab(each.name, each.labeled, each.train, each.test, stain(config, Styles(styles), each.name))
        for each in given
    }


def distance(a: Pixels, b: Pixels) -> float:
    return float(np.square(a.astype(float) - b).mean())


def test_all_rows_have_five_seeds_and_the_papers_rows_three_folds() -> None:
    runs = Table1("cpu", Path(), styles="mixtures").list_runs()
    assert len(set(runs)) == len(runs)
    for method in METHODS:
        own = {(seed, fold) for key, seed, fold in runs if key == method.key}
        folds = range(FOLDS if method.paper else 1)
        assert own == {(seed, fold) for seed in range(SEEDS) for fold in folds}
    assert {"fedavgm", "fedavgm-fixmatch", "bottlegan-normalize", "bottlegan-fixmatch"} <= {
        method.key for method in METHODS if method.paper
    }


def test_only_rows_that_are_asked_for_are_made() -> None:
    some = Table1("cpu", Path(), rows=("oracle",), draws=2, styles="wide")
    assert set(some.list_runs()) == {("oracle", seed, fold) for seed in range(2) for fold in range(FOLDS)}
    first = replace(some, folds=1)
    assert first.list_runs() == [("oracle", 0, 0), ("oracle", 1, 0)]
    with pytest.raises(InputError, match="has no row oracel; there are: fedavgm"):
        Table1("cpu", Path(), rows=("oracel",), styles="wide")
    with pytest.raises(InputError, match="table1 has 1 to 3 folds, not 4"):
        replace(some, folds=4)


def test_settings_are_chosen_on_labs_that_the_table_never_sees() -> None:
    table, sweep = (Table1("cpu", Path(), styles="mixtures", sweep=sweep) for sweep in (False, True))
    assert not {seed for _, seed, _ in table.list_runs()} & {seed for _, seed, _ in sweep.list_runs()}
    assert {key for key, _, _ in sweep.list_runs()} == {method.key for method in SWEEP}


def test_mixtures_stain_more_alike_than_wide_styles(world: World) -> None:
    near = draw_world("smoke", "mixtures", None, 0, 0)
    assert all(client.style.pixel_noise == 0 for client in near.partition.clients)
    apart = [
        np.std([each.style.hematoxylin for each in drawn.partition.clients], axis=0).mean() for drawn in (near, world)
    ]
    assert apart[0] < 0.5 * apart[1]


def test_labs_differ_in_stain_and_agree_in_everything_else(world: World) -> None:
    own, ideal = world.labs("own"), world.labs("reference")
    assert [lab.name for lab in own] == [lab.name for lab in ideal]
    for a, b in zip(own, ideal, strict=True):
        assert len(a.labeled) == len(b.labeled)
        for one, other in zip([*a.labeled, *a.test], [*b.labeled, *b.test], strict=True):
            assert (one.truth == other.truth).all()
            assert distance(one.image, other.image) > 20
    assert sum(bool(lab.labeled) for lab in own) == 2


def test_a_window_is_cut_from_the_image_where_its_label_is(world: World) -> None:
    client = next(client for client in world.partition.clients if client.labeled)
    window = client.windows[0]
    place = np.s_[window.top : window.top + window.size, window.left : window.left + window.size]
    lab = world.lab(client, None)
    assert (lab.labeled[0].image == world.contents[window.patch].image[place]).all()
    assert (lab.labeled[0].truth == world.contents[window.patch].mask[place]).all()


@pytest.mark.parametrize("key", ["bottlegan-normalize", "macenko", "oracle"])
def test_these_rows_show_the_network_the_reference_stain(key: str, world: World, styles: ModelWeights) -> None:
    labs, own = labs_of(key, world, styles), world.labs("own")
    for name, ideal, stained in zip(labs, world.labs("reference"), own, strict=True):
        shown = distance(labs[name].test[0].image, ideal.test[0].image)
        assert shown < 0.6 * distance(stained.test[0].image, ideal.test[0].image)


@pytest.mark.parametrize("key", ["fedavgm", "hed", "randstainna", "bottlegan-restain"])
def test_these_rows_predict_on_images_as_they_are(key: str, world: World, styles: ModelWeights) -> None:
    labs = labs_of(key, world, styles)
    for lab, stained in zip(labs.values(), world.labs("own"), strict=True):
        assert (lab.test[0].image == stained.test[0].image).all()
        crops = np.stack([lab.unlabeled[0]] * 2)
        varied = lab.staining.vary(crops, np.random.default_rng(0))
        assert (distance(varied, crops) > 0) == (key != "fedavgm")


@pytest.mark.parametrize("key", ["fedavgm", "bottlegan-fixmatch", "bottlegan-adversarial", "local", "pooled", "fedbn"])
def test_a_run_is_written_and_its_seed_reproduces_it(key: str, styles: ModelWeights, smoke: Table1) -> None:
    path = smoke.path(key, 0, 0)
    run = make_run((key, 0, 0), smoke)
    written = path.read_text()
    assert not path.with_suffix("").exists(), "a finished run needs no checkpoint"
    assert 0 <= run.scores.iou <= 1
    assert run.scores.nll > 0
    assert (run.bytes_up == 0) == (key in ("local", "pooled"))
    assert bool(run.curve) == (key != "local")
    assert bool(run.pseudo_labels) == ("fixmatch" in key)
    path.unlink()
    again = make_run((key, 0, 0), smoke)
    assert (again.scores, again.curve, again.unlabeled) == (run.scores, run.curve, run.unlabeled)
    assert written.count("\n") > 5


def test_an_interrupted_run_goes_on_where_it_was(
    styles: ModelWeights, smoke: Table1, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_run(("bottlegan-restain", 0, 0), smoke)
    smoke.path("bottlegan-restain", 0, 0).unlink()
    answer, asked = Client.answer, []

    def interrupt(client: Client, request: Request) -> Reply:
        asked.append(request)
        if [each.kind for each in asked].count("train") > 3:
            raise KeyboardInterrupt
        return answer(client, request)

    monkeypatch.setattr(Client, "answer", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_run(("bottlegan-restain", 0, 0), smoke)
    asked.clear()
    monkeypatch.setattr(Client, "answer", lambda *args: (asked.append(args[1]), answer(*args))[1])
    resumed = make_run(("bottlegan-restain", 0, 0), smoke)
    assert (resumed.scores, resumed.curve) == (whole.scores, whole.curve)
    assert [request.kind for request in asked].count("train") == 4, "the first round must not be trained again"


def made(key: str, iou: float, ece: float, nll: float, **more: object) -> Table1Run:
    scores = Scores(iou=iou, ece=ece, nll=nll)
    points = (Point(round=5, scores=replace(scores, iou=iou / 2)), Point(round=10, scores=scores))
    return Table1Run(key=key, seed=0, fold=0, rounds=10, scores=scores, unlabeled=scores, curve=points, **more)


def test_ratios_are_what_hand_computation_gives() -> None:
    runs = [made("fedavgm", 0.4, 0.2, 0.8), made("bottlegan-normalize", 0.7, 0.05, 0.4), made("oracle", 0.8, 0.02, 0.3)]
    page = to_markdown(runs, METHODS, "command")
    # IOU .7 / .8, gap (.7 - .4) / (.8 - .4), no labels .7 / .8, ECE .05 / .2, NLL .4 / .8, nothing calibrated
    assert "| BottleGAN, normalize | 1 | 0.875 | 0.750 | 0.875 | 0.250 | 0.500 | nan | nan |" in page
    assert to_csv(runs).count("\n") == 4


def test_intervals_are_students_over_seeds() -> None:
    runs = [replace(made("fedavgm", iou, 0.2, 0.8), seed=seed) for seed, iou in enumerate((0.4, 0.5, 0.6))]
    # t(.975, 2) = 4.303, times .1 / sqrt(3)
    assert "| FedAvgM | 3 | 0.500 ± 0.248 |" in to_markdown(runs, METHODS, "command")


def test_pseudo_labels_are_counted_as_by_hand() -> None:
    found = torch.tensor([1, 1, 0, 0, 1, 0])
    sure = torch.tensor([True, True, True, True, False, False])
    truth = torch.tensor([1, 0, 0, 1, 1, 1])
    # Confident about 4 of 6, right about the 1st and 3rd; 2 called epithelium, 1 of them rightly, out of 4.
    point = summarize(25, count(found, sure, truth))
    assert (point.sure, point.right, point.precision, point.recall) == (4 / 6, 0.5, 0.5, 0.25)
    run = replace(made("fedavgm-fixmatch", 0.4, 0.2, 0.8), pseudo_labels=(point,))
    page = to_markdown([run], METHODS, "command")
    assert "| FedAvgM + FixMatch | 25 | 0.667 | 0.500 | 0.500 | 0.250 |" in page


def test_figure_3_has_a_line_for_each_row_that_was_made_in_each_panel(tmp_path: Path) -> None:
    path = write_figure([made(key, 0.4, 0.2, 0.8) for key in ("fedavgm", "hed", "oracle")], tmp_path)
    drawn = path.read_text()
    assert drawn.count("<polyline") == 3 * 2
    assert "hed" not in SHOWN
    assert drawn.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert all(title in drawn for title in ("IOU", "ECE", "NLL"))


def test_finished_runs_are_read_in_the_order_of_the_rows(smoke: Table1) -> None:
    keys = [run.key for run in smoke.read(Table1Run)]
    assert keys == [key for key in BY_KEY if key in keys]


def test_the_command_makes_only_what_is_missing(styles: ModelWeights, smoke: Table1) -> None:
    make_run(("fedavgm", 0, 0), smoke)
    before = smoke.path("fedavgm", 0, 0).stat().st_mtime_ns
    page = run_table(replace(smoke, rows=("fedavgm", "hed")), jobs=1)
    assert smoke.path("fedavgm", 0, 0).stat().st_mtime_ns == before
    assert "| FedAvgM + HED jitter | 1 |" in page.read_text()


def test_rows_that_are_made_side_by_side_share_one_phase_1(world: World, tmp_path: Path) -> None:
    path, labs = tmp_path / "styles.safetensors", world.labs("own")
    with ThreadPoolExecutor(3) as pool:
        found = [task.result() for task in [pool.submit(obtain_styles, labs, 0, path) for _ in range(3)]]
    assert {each.document.record["seconds"] for each in found} == {found[0].document.record["seconds"]}


def test_torchstain_leaves_alone_what_it_fails_on(world: World, styles: ModelWeights) -> None:
    pytest.importorskip("torchstain")
    staining = next(iter(labs_of("torchstain", world, styles).values())).staining
    blank, tissue = np.full((64, 64, 3), 255, np.uint8), world.labs("own")[0].train[0]
    assert (staining.prepare(blank) == blank).all()
    assert (staining.present(tissue) == staining.prepare(tissue)).all()
    assert distance(staining.prepare(tissue), tissue) > 20


def test_temperature_changes_calibration_and_no_class(world: World, styles: ModelWeights, smoke: Table1) -> None:
    run = make_run(("bottlegan-normalize", 0, 0), smoke)
    assert run.calibrated is not None
    assert run.temperature is not None
    assert run.calibrated.iou == run.scores.iou
    assert run.calibrated.nll != run.scores.nll
