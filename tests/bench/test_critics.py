from copy import deepcopy

import pytest
import torch
from torch import nn

from bottlegan.bench import critics as bench
from bottlegan.bench import physical_labs
from bottlegan.bench.critics import TRIALS, LabView, TrainableMap, Trial
from bottlegan.bench.physical_labs import AS_THEY_COME, LabPair
from bottlegan.models.document import PRIOR
from bottlegan.models.paradigms import BottleGAN
from bottlegan.simulation.organs import draw_patch

SIDE = 96


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("STEPS", 2), ("LOOK", 1), ("BEGINNING", 60), ("PIXELS", 512)):
        monkeypatch.setattr(bench, name, value)


@pytest.fixture(scope="module")
def pair() -> LabPair:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(physical_labs, "SIDE", SIDE)
        pool = [draw_patch(physical_labs.SEED, index, SIDE) for index in range(20)]
        return physical_labs.draw_pair(pool, 0, AS_THEY_COME)


def test_all_trials_begin_where_the_encoder_is(pair: LabPair) -> None:
    found = bench.run_pair(pair, BottleGAN.load(PRIOR), 0)
    first = {tuple(found[name][0]) for name in TRIALS}  # type: ignore[index]
    assert len(first) == 1
    step, error, _ = first.pop()
    assert step == 0
    encoder = found["encoder"]
    assert isinstance(encoder, float)
    assert abs(error - encoder) < 0.3 * encoder
    assert [len(found[name]) for name in TRIALS] == [3] * len(TRIALS)  # type: ignore[arg-type]
    lines = bench.summarize([found, found])
    assert len(lines) == 2 + len(found)
    assert all(line.count("|") == 7 for line in lines)


def test_only_what_may_change_does(pair: LabPair) -> None:
    maps = nn.ModuleList([TrainableMap(), TrainableMap()])
    labs = tuple(LabView(torch.rand(2, 3, 80, 80), torch.rand(2, 3, 80, 80)) for _ in "ab")
    before = deepcopy(maps.state_dict())
    bench.train(maps, labs, Trial(residual=True), pair, 0)  # type: ignore[arg-type]
    changed = {name for name, tensor in maps.state_dict().items() if not torch.equal(tensor, before[name])}
    assert any("residual" in name for name in changed)
    assert not any("affine" in name for name in changed)


def test_matched_crops_show_the_most_similar_tissue() -> None:
    # The left half is of the first class, the right half of the second.
    tissue = torch.zeros(1, 3, 80, 400)
    tissue[:, 0, :, :200] = 1
    tissue[:, 1, :, 200:] = 1
    lab = LabView(torch.rand(1, 3, 400, 400), tissue.expand(1, 3, 80, 400).repeat(1, 1, 5, 1))
    wanted = torch.zeros(4, 3, 64, 64)
    wanted[:, 1] = 1
    _, found = lab.crops(torch.Generator().manual_seed(0), 4, wanted)
    assert found[:, 1].mean() > 0.95


def test_the_criterion_compares_class_by_class() -> None:
    # As much of either class or not: each has its own color.
    colors = torch.tensor([[0.9, 0.5, 0.7], [0.3, 0.2, 0.6]])
    for share in (16, 48):
        tissue = torch.zeros(1, 3, 64, 64)
        tissue[:, 1, :share], tissue[:, 2, share:] = 1, 1
        images = torch.einsum("nkhw,kc->nchw", tissue[:, 1:], colors)
        found = [bench.color_quantiles(images, tissue, kind) for kind in (1, 2)]
        torch.testing.assert_close(found[0], bench.to_density(colors[:1]).expand(25, 3))
        torch.testing.assert_close(found[1], bench.to_density(colors[1:]).expand(25, 3))
    assert bench.color_quantiles(images, tissue, 0) is None
