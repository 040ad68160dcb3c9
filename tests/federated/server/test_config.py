from dataclasses import replace
from pathlib import Path

import pytest

from bottlegan.core.errors import ConfigError
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.server.config import FederationConfig, flatten, unflatten


def test_a_flat_configuration_has_scalars_only_and_comes_back(tiny: Phase2Config) -> None:
    config = FederationConfig(seed=5, phase2=replace(tiny, restained=0.25))
    flat = flatten(config)
    assert all(isinstance(value, str | int | float | bool) for value in flat.values())
    assert flat["phase2.training.steps"] == 1
    assert flat["phase2.restained"] == 0.25
    assert unflatten(flat) == config
    assert unflatten({}) == FederationConfig()
    assert unflatten({"phase2.rounds": 7}).phase2.rounds == 7


def test_what_has_no_value_yet_can_be_given_one_for_a_run(tiny: Phase2Config) -> None:
    flat = flatten(FederationConfig())
    own = {
        "start": "one.safetensors",
        "phase2.task.micrometers": 0.5,
        "phase2.task.ignore": 255,
        "phase2.restained": 0.5,
        "phase2.network.arguments": '{"width": 4, "layers": [1, 2]}',
    }
    # Flower refuses to change a key that is not there.
    assert flat.keys() >= own.keys()
    found = unflatten({**flat, **own})
    assert found.start == Path("one.safetensors")
    assert (found.phase2.task.micrometers, found.phase2.task.ignore, found.phase2.restained) == (0.5, 255, 0.5)
    assert found.phase2.network.arguments == {"width": 4, "layers": [1, 2]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"phase2.round": 7}, "unknown key `phase2.round`"),
        ({"phase2.rounds": "7"}, "key `phase2.rounds`"),
        ({"seed": 1, "seed.x": 2}, "`seed.x` is below `seed`, which is no table"),
        ({"strategy.name": "fedprox"}, "fedprox needs phase2.proximal"),
        ({"upload_deadline": 0.0}, "upload_deadline must be above 0"),
    ],
)
def test_a_wrong_flat_configuration_is_explained(values: dict[str, str | int | float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        unflatten(values)
