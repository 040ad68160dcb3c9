import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from bottlegan.bench import onboard as bench
from bottlegan.core.errors import InputError
from bottlegan.core.progress import Silent
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import to_batch
from bottlegan.metrics.image import mean_squared_error
from bottlegan.models.document import PRIOR
from bottlegan.models.paradigms import BottleGAN
from bottlegan.reproduce.paired import Half, load_halves


@pytest.fixture(scope="module")
def halves() -> tuple[Half, Half]:
    return load_halves("smoke", None, 0, Silent())


def test_ours_and_the_peers_are_measured_in_one_run(halves: tuple[Half, Half], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(reference: Pixels) -> Callable[[Pixels], Pixels]:
        raise ImportError("not installed")

    monkeypatch.setattr(bench, "SIMULATED_LABS", 1)
    monkeypatch.setattr(bench, "OTHERS", {"a peer": missing})
    figures = bench.bench_onboard(halves, labs=2)
    json.dumps(figures, allow_nan=False)
    rows = figures["rows"]
    assert figures["labs"] == 2
    assert rows["a peer"] == {"note": "not installed"}
    ours = rows[bench.SHIPPED]
    assert ours["normalization MSE"].keys() == {"mean", "median", "90th percentile", "worst"}
    assert ours["restaining MSE"]["mean"] > 0
    assert 0 < ours["fit seconds"]["mean"] <= ours["fit seconds"]["max"]
    assert sum(ours["verdicts"].values()) == pytest.approx(1)
    assert ours["bytes a lab shares"] == 4 * BottleGAN.load(PRIOR).codes.size
    assert ours["normalization MSE"]["mean"] < rows["nothing"]["normalization MSE"]["mean"]
    assert rows["shipped prior, real reference stain"].keys() == ours.keys()
    more = figures["more patches"]
    assert (more["labs"], more["patches"]) == (1, 5), "one of six patches is left to score on"
    assert more["ratio"] == pytest.approx(more["MSE of one patch, median"] / more["MSE of several patches, median"])


def test_doing_nothing_has_the_error_of_the_styled_patches(halves: tuple[Half, Half]) -> None:
    method = bench.list_methods(BottleGAN.load(PRIOR))["nothing"]
    row = bench.make_row("nothing", method, halves, Silent())
    pairs = [pair for half in halves for pair in zip(half.styled, half.truths, strict=True)]
    errors = [mean_squared_error(to_batch(styled), to_batch(truth)).item() for styled, truth in pairs]
    assert row["normalization MSE"]["mean"] == pytest.approx(np.mean(errors))
    assert row["normalization MSE"]["median"] == pytest.approx(np.median(errors))
    assert row["restaining MSE"]["mean"] == pytest.approx(np.mean(errors))
    assert (row["failed"], row["worse than nothing"], row["verdicts"]) == (0, 0, None)


def test_a_failure_is_counted_and_leaves_the_patch_as_it_is(halves: tuple[Half, Half]) -> None:
    def fail(image: Tensor) -> Tensor:
        raise ValueError("no tissue")

    nothing = bench.list_methods(BottleGAN.load(PRIOR))["nothing"]
    row = bench.make_row("fails", bench.fit_classical(lambda pool: fail), halves, Silent())
    unchanged = bench.make_row("nothing", nothing, halves, Silent())
    assert row["failed"] == 6
    assert row["worse than nothing"] == 0
    assert row["normalization MSE"] == unchanged["normalization MSE"]
    assert row["restaining MSE"] is None


def test_making_things_worse_is_counted(halves: tuple[Half, Half]) -> None:
    row = bench.make_row("negative", bench.fit_classical(lambda pool: lambda image: 1 - image), halves, Silent())
    assert row["failed"] == 0
    assert row["worse than nothing"] == 6
    assert row["swapped"] == 6


def test_peers_get_levels_and_the_mosaic_of_the_pool(halves: tuple[Half, Half]) -> None:
    seen: list[tuple[int, ...]] = []

    def peer(reference: Pixels) -> Callable[[Pixels], Pixels]:
        seen.append(reference.shape)
        return lambda image: 255 - image

    fitted = bench.fit_peer(peer)(halves[0])(halves[0].styled[0])
    assert seen == [(48, 48, 3)]
    assert fitted.normalized is not None
    torch.testing.assert_close(fitted.normalized, 1 - to_batch(halves[0].styled[0]))


def test_another_reference_stain_leaves_the_model_alone(halves: tuple[Half, Half]) -> None:
    model = BottleGAN.load(PRIOR)
    before = {name: tensor.clone() for name, tensor in model.reference.state_dict().items()}
    changed = bench.with_reference(model, halves[0].styled)
    assert not torch.equal(changed.reference.maps, before["maps"])
    assert not torch.equal(changed.reference.stains, before["stains"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.reference.state_dict().items())


def test_labs_are_taken_at_even_distances(halves: tuple[Half, Half]) -> None:
    thinned = bench.thin(halves[0], 2)
    assert thinned.names == (halves[0].names[0], halves[0].names[-1])
    assert thinned.truths[1] is halves[0].truths[-1]
    assert thinned.pool is halves[0].pool
    with pytest.raises(InputError, match="at least 2 labs"):
        bench.bench_onboard(halves, labs=1)
