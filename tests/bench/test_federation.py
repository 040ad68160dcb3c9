import json
from dataclasses import replace
from pathlib import Path

import pytest

from bottlegan.bench.federation import bench_phase1, bench_staining
from bottlegan.bench.many_labs import CONFIG, DRAWN, LABS, copy_labs
from bottlegan.bench.timing import time_rounds
from bottlegan.core.progress import Silent
from bottlegan.federated.client.client import open_client
from bottlegan.federated.client.holdings import find_labs
from bottlegan.federated.server.folder import LOG
from bottlegan.federated.simulation import LabsConfig, draw_labs, run_local
from bottlegan.reproduce.world import World, draw_world


@pytest.fixture(scope="module")
def world() -> World:
    return draw_world("smoke", "wide", None, 0, 0)


def test_uploads_are_as_small_as_they_are_said_to_be(world: World) -> None:
    code, model = bench_phase1(world, "code", Silent())
    assert code["bytes_up"] <= 1000
    assert code["labs"] == len(model.document.styles) == 4
    assert code["minutes"] == pytest.approx((code["seconds_clients"] + code["seconds_server"]) / 60)
    figures = bench_staining(world, model, rounds=2)
    assert 0 <= figures["share"] < 1
    assert figures["step_ms"] > figures["restaining_step_ms"] > 0


def test_a_round_takes_the_median_time_between_two_in_the_log(tmp_path: Path) -> None:
    ends = [10.0, 12.0, 14.5, 17.5, 40.0]  # the last round is scored, and does not count
    events = [{"time": 1.0, "kind": "styles"}, *({"time": end, "kind": "round"} for end in ends)]
    (tmp_path / LOG).write_text("".join(json.dumps(event) + "\n" for event in events))
    assert time_rounds(tmp_path) == 2.5


def test_labs_that_share_images_keep_a_state_each(tmp_path: Path) -> None:
    config = LabsConfig(count=2, train=1, test=1, size=64, labeled=2, windows=2, window_size=32, reference_patches=1)
    draw_labs(config, 0, tmp_path, Silent())
    copy_labs(find_labs(tmp_path / "labs")["lab-01"], 3, tmp_path / "many")
    clients = {name: open_client(path) for name, path in find_labs(tmp_path / "many").items()}
    assert list(clients) == ["lab-0000", "lab-0001", "lab-0002"]
    assert len({client.state for client in clients.values()}) == 3
    assert all(len(client.holdings.images()) == 1 for client in clients.values())


def test_a_thousand_labs_that_are_copies_of_one_can_train(tmp_path: Path) -> None:
    draw_labs(LABS, 0, tmp_path, Silent())
    copy_labs(next(iter(find_labs(tmp_path / "labs").values())), 12, tmp_path / "many" / "labs")
    labs = find_labs(tmp_path / "many" / "labs")
    config = replace(CONFIG, phase2=replace(CONFIG.phase2, rounds=1))
    (only,) = run_local(labs, config, tmp_path / "run").history.rounds
    assert len(labs) == len(only.each) == 12
    assert len(only.trained) == DRAWN
