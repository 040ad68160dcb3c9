import sys
import types

import pytest
import torch
from torch import Tensor, nn

from bottlegan.core.errors import ConfigError
from bottlegan.core.task import Task
from bottlegan.models import networks
from bottlegan.models.networks import (
    Built,
    NetworkConfig,
    build_network,
    check_allowed,
    exchanged,
    list_normalization,
    list_statistics,
    load_weights,
    to_classes,
)
from bottlegan.models.segmenter import Classifier, Segmenter

THREE = Task(classes=("a", "b", "c"))
PATCHES = Task(kind="classification", classes=("a", "b", "c"))
UNET = NetworkConfig(
    factory="monai.networks.nets:UNet",
    arguments={
        "spatial_dims": 2,
        "in_channels": 3,
        "out_channels": 3,
        "channels": [4, 8, 16],
        "strides": [2, 2],
        "norm": "batch",
    },
)
DENSE = NetworkConfig(
    factory="monai.networks.nets:DenseNet121", arguments={"spatial_dims": 2, "in_channels": 3, "out_channels": 3}
)


def build(config: NetworkConfig, task: Task, seed: int = 0, crop: int = 32) -> Built:
    return build_network(config, task, torch.Generator().manual_seed(seed), crop=crop)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A user's own module for factories."""
    module = types.ModuleType("their_networks")
    monkeypatch.setitem(sys.modules, "their_networks", module)
    return module


def test_by_default_a_task_gets_our_own_network() -> None:
    assert isinstance(build(NetworkConfig(), Task()).network, Segmenter)
    assert isinstance(build(NetworkConfig(), PATCHES).network, Classifier)


@torch.no_grad()
def test_logits_are_of_all_classes_whatever_the_network_says() -> None:
    images = torch.rand(2, 3, 33, 20, generator=torch.Generator().manual_seed(0))
    two = build(NetworkConfig(), Task())
    assert two(images).shape == (2, 2, 33, 20)
    torch.testing.assert_close(torch.softmax(two(images), 1)[:, 1], torch.sigmoid(two.network(images))[:, 0])
    assert build(NetworkConfig(), THREE)(images).shape == (2, 3, 33, 20)
    assert build(NetworkConfig(), PATCHES)(images).shape == (2, 3)
    assert to_classes(torch.zeros(1, 3)).shape == (1, 3)


@torch.no_grad()
def test_monais_networks_take_images_of_any_size() -> None:
    pytest.importorskip("monai", reason="needs pip install 'bottlegan[adapters]'")
    for size in ((32, 32), (33, 50), (5, 7)):
        assert build(UNET, THREE)(torch.rand(1, 3, *size)).shape == (1, 3, *size)
    assert build(DENSE, PATCHES)(torch.rand(2, 3, 40, 40)).shape == (2, 3)


def test_batch_norm_is_told_from_what_is_learned() -> None:
    pytest.importorskip("monai", reason="needs pip install 'bottlegan[adapters]'")
    network = build(UNET, THREE).network
    sent, statistics = exchanged(network), list_statistics(network)
    assert all(tensor.is_floating_point() for tensor in sent.values())
    assert {name.rsplit(".", 1)[1] for name in statistics} == {"running_mean", "running_var"}
    assert statistics < list_normalization(network) < sent.keys()
    other = build(UNET, THREE, seed=1).network
    load_weights(other, sent)
    assert all(torch.equal(sent[name], exchanged(other)[name]) for name in sent)
    assert len(other.state_dict()) > len(sent)


def test_weights_depend_on_the_generator_only() -> None:
    torch.manual_seed(5)
    first = exchanged(build(NetworkConfig(), Task()).network)
    torch.manual_seed(6)
    again, other = (exchanged(build(NetworkConfig(), Task(), seed).network) for seed in (0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_a_factory_is_told_how_many_classes_there_are(package: types.ModuleType) -> None:
    package.make = lambda classes, width=2: nn.Conv2d(3, classes, 1)  # type: ignore[attr-defined]
    theirs = NetworkConfig(factory="their_networks:make")
    assert build(theirs, THREE)(torch.rand(1, 3, 8, 8)).shape == (1, 3, 8, 8)
    with pytest.raises(ConfigError, match="needs logits"):
        build(NetworkConfig(factory="their_networks:make", arguments={"classes": 2}), THREE)


def test_only_what_is_ours_or_allowed_may_be_built() -> None:
    check_allowed(NetworkConfig(), Task(), (), "no")
    check_allowed(NetworkConfig(factory="bottlegan.models.segmenter:unet"), Task(), (), "no")
    check_allowed(UNET, Task(), ("monai.networks.nets:UNet",), "no")
    for factory in ("monai.networks.nets:UNet", "os:system", "bottlegan.core.files:write_text"):
        with pytest.raises(ConfigError, match=f"the network's factory {factory} is not allowed here; ask us"):
            check_allowed(NetworkConfig(factory=factory), Task(), ("monai.networks.nets:DenseNet121",), "ask us")


@pytest.mark.parametrize("factory", ["monai", "a.b:", ":c", "a b:c", "a:b.c", "a:b()", "../x:y", "a..b:c"])
def test_a_factory_has_a_name_of_one_form(factory: str) -> None:
    with pytest.raises(ConfigError, match=r"`package\.module:function`"):
        NetworkConfig(factory=factory)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            NetworkConfig(factory="nowhere.at_all:make"),
            "cannot be imported .*named 'nowhere'.*install it here",
        ),
        (NetworkConfig(factory="torch.nn:Nothing"), "torch.nn has no function Nothing"),
        (NetworkConfig(factory="torch.nn:modules"), "has no function modules"),
        (NetworkConfig(arguments={"wide": 3}), "unexpected keyword argument 'wide'"),
        (NetworkConfig(factory="os:getcwd"), "returns a str; it must return a torch nn.Module"),
        (
            NetworkConfig(factory="torch.nn:Conv2d", arguments={"in_channels": 3, "out_channels": 5, "kernel_size": 3}),
            r"makes \(1, 5, 30, 30\) of an image \(1, 3, 32, 32\); .* of 3 classes needs logits \(1, 3, 32, 32\)",
        ),
        (
            NetworkConfig(factory="torch.nn:Conv2d", arguments={"in_channels": 4, "out_channels": 3, "kernel_size": 1}),
            "fails on an image of 32 x 32 px",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(config: NetworkConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as found:
        build(config, THREE)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("factory", "arguments"),
    [
        ("torch.nn:Linear", {"in_features": 10**6, "out_features": 10**6}),
        ("torch.nn:Embedding", {"num_embeddings": 10**9, "embedding_dim": 10**3}),
        ("bottlegan.models.segmenter:unet", {"width": 10**6}),
    ],
)
def test_nothing_is_allocated_beyond_the_budget(factory: str, arguments: dict[str, int]) -> None:
    config = NetworkConfig(factory=factory, arguments=dict(arguments))
    with pytest.raises(ConfigError, match="far larger network"):
        build(config, Task())
    assert torch.is_grad_enabled()  # what a refused factory would have restored


def test_nor_in_many_small_pieces(package: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "MOST_TENSORS", 50)
    package.make = lambda: nn.Sequential(*(nn.Conv2d(3, 3, 1) for _ in range(100)))  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="far larger network"):
        build(NetworkConfig(factory="their_networks:make"), THREE)


def test_a_module_that_fails_when_imported_is_told_so(package: types.ModuleType) -> None:
    def make() -> nn.Module:
        raise OSError("no\nweights")

    package.make = make  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"fails with these arguments \(OSError: no weights"):
        build(NetworkConfig(factory="their_networks:make"), THREE)


@pytest.mark.parametrize("status", [0, "their license is missing"])
def test_a_factory_does_not_end_the_process(package: types.ModuleType, status: int | str) -> None:
    package.make = lambda: sys.exit(status)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=f"fails with these arguments .SystemExit: {status}"):
        build(NetworkConfig(factory="their_networks:make"), THREE)


def test_a_network_has_something_to_train(package: types.ModuleType) -> None:
    package.make = nn.Identity  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="their_networks:make returns a network without weights to train"):
        build(NetworkConfig(factory="their_networks:make"), THREE)


@torch.no_grad()
def test_images_are_padded_as_the_configuration_says(package: types.ModuleType) -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(1))

        def forward(self, images: Tensor) -> Tensor:
            assert images.shape[2] % 8 == images.shape[3] % 8 == 0
            return images + self.shift

    package.make = Picky  # type: ignore[attr-defined]
    images = torch.rand(1, 3, 9, 17)
    for multiple in (8, 16, None):
        built = build(NetworkConfig(factory="their_networks:make", multiple=multiple), THREE)
        assert torch.equal(built(images), images)
    with pytest.raises(ConfigError, match="multiple must be 1 to 512"):
        NetworkConfig(multiple=0)
