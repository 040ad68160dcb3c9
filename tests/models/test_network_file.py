import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bottlegan.core.config import to_values
from bottlegan.core.errors import InputError, MissingError, ModelFileError
from bottlegan.core.task import Task
from bottlegan.models.document import PRIOR
from bottlegan.models.network_file import (
    NetworkDocument,
    digest_model,
    load_network,
    read_network_document,
    read_start,
    save_network,
)
from bottlegan.models.networks import Built, NetworkConfig, build_network, exchanged
from bottlegan.models.weights import is_network, read_weights

TASK = Task(classes=("other", "benign", "tumor"), micrometers=0.5)
SMALL = NetworkConfig(arguments={"width": 2, "depth": 2})
SAID = NetworkDocument(
    task=TASK,
    network=SMALL,
    crop=32,
    mode="plain",
    temperature=1.5,
    scores={"iou": 0.5},
    weights="0" * 64,
    record={"rounds": 3},
)


def build(config: NetworkConfig = SMALL, task: Task = TASK, seed: int = 0) -> Built:
    return build_network(config, task, torch.Generator().manual_seed(seed), crop=32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_network(tmp_path / "network.safetensors", exchanged(build().network), SAID)
    return tmp_path / "network.safetensors"


def rewrite(path: Path, **changes: object) -> None:
    """Change the document of a file, and nothing else."""
    tensors = load_file(path)
    values = json.loads(_metadata(path)["network"]) | changes
    save_file(tensors, path, {"network": json.dumps(values)})


def _metadata(path: Path) -> dict[str, str]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    found: dict[str, str] = json.loads(content[8 : 8 + length])["__metadata__"]
    return found


def test_a_network_comes_back_with_all_that_is_said_of_it(path: Path) -> None:
    built, said = load_network(path)
    assert replace(said, weights=SAID.weights) == SAID
    assert read_network_document(path) == said
    assert is_network(path)
    assert not is_network(PRIOR)
    assert not built.network.training
    images = torch.rand(1, 3, 20, 24, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(built(images), build().network.eval()(images), check_dtype=True)


def test_the_same_network_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    save_network(tmp_path / "again.safetensors", exchanged(build().network), SAID)
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "written by another BottleGAN"),
        ({"temperature": 0.0}, "temperature"),
        ({"crop": 10**9}, "crop must be"),
        ({"mode": "magic"}, "mode"),
        ({"task": {"kind": "segmentation", "classes": ["one"]}}, "2 to 64 names"),
        (
            {"network": {"factory": "os:system"}},
            "os:system is not allowed here; if you trust it, allow it",
        ),
        ({"network": {"factory": "os.system"}}, "package.module:function"),
        ({"network": {"arguments": {"width": 3, "depth": 2}}}, "its tensors do not match its network"),
        ({"network": {"arguments": {"width": 4096, "depth": 6}}}, "far larger network"),
        ({"task": to_values(Task())}, "its tensors do not match its network"),
        ({"surprise": 1}, "unknown key `surprise`"),
        ({"weights": "1" * 64}, "do not match their hash"),
        ({"weights": "x"}, "SHA-256"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_one_line(path: Path, changes: dict[str, object], message: str) -> None:
    rewrite(path, **changes)
    with pytest.raises(ModelFileError, match=message) as found:
        load_network(path)
    assert "\n" not in str(found.value)
    assert str(path) in str(found.value)


def test_a_small_file_builds_nothing_large(path: Path) -> None:
    # What width 40,000 would take: 192 GiB.
    rewrite(path, network={"factory": "bottlegan.models.segmenter:unet", "arguments": {"width": 40_000}})
    assert path.stat().st_size < 30_000
    with pytest.raises(ModelFileError, match="far larger network"):
        load_network(path)


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\xff" * 64, struct.pack("<Q", 2**40) + b"{}"])
def test_a_few_bytes_that_claim_to_be_huge_are_refused(tmp_path: Path, content: bytes) -> None:
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(content)
    with pytest.raises(ModelFileError, match="not a whole safetensors file"):
        load_network(bad)


def test_a_cut_off_file_a_model_and_no_file_are_refused(path: Path, tmp_path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ModelFileError, match="cut off"):
        load_network(path)
    with pytest.raises(ModelFileError, match="is not a network"):
        load_network(PRIOR)
    with pytest.raises(MissingError, match="no such network file"):
        load_network(tmp_path / "none.safetensors")
    with pytest.raises(ModelFileError, match="is not a file"):
        load_network(tmp_path)


def test_numbers_that_are_none_are_refused(path: Path) -> None:
    weights = exchanged(build().network)
    first = next(iter(weights))
    with pytest.raises(ModelFileError, match="NaN or infinity"):
        save_network(path, {**weights, first: weights[first] * float("nan")}, SAID)
    with pytest.raises(ModelFileError, match="must be float32"):
        save_network(path, {**weights, first: weights[first].double()}, SAID)
    assert load_network(path)


def test_a_network_can_start_from_another(path: Path) -> None:
    other = exchanged(build(seed=1).network)
    found, new = read_start(path, other)
    assert not new
    assert all(torch.equal(found[name], tensor) for name, tensor in exchanged(build().network).items())
    # Fine-tuned for other classes, its last layer is new.
    two = exchanged(build(task=Task()).network)
    found, new = read_start(path, two)
    assert new == ["head.weight", "head.bias"]
    assert torch.equal(found["head.weight"], two["head.weight"])
    assert torch.equal(found["down.0.enter.weight"], exchanged(build().network)["down.0.enter.weight"])


def test_a_start_that_does_not_fit_is_refused(path: Path, tmp_path: Path) -> None:
    wide = exchanged(build(NetworkConfig(arguments={"width": 3, "depth": 2})).network)
    with pytest.raises(InputError, match=r"has \d+ of the network's \d+ tensors"):
        read_start(path, wide)
    with pytest.raises(MissingError):
        read_start(tmp_path / "none", wide)


def test_a_models_digest_does_not_depend_on_the_styles_it_knows() -> None:
    prior = read_weights(PRIOR)
    code = next(iter({"a": torch.zeros(24).numpy()}.items()))
    assert digest_model(prior) == digest_model(prior.with_styles(dict([code])).without_encoders())
    changed = {**prior.arrays, "reference.stains": prior.arrays["reference.stains"] + 1}
    assert digest_model(prior) != digest_model(replace(prior, arrays=changed))
