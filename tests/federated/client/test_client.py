import copy
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bottlegan.core.config import load, to_values
from bottlegan.core.errors import ConfigError, FederationError, MissingError
from bottlegan.core.task import Task
from bottlegan.data.labels import Labeled
from bottlegan.federated.client.client import Client, open_client
from bottlegan.federated.client.holdings import LabConfig, open_holdings
from bottlegan.federated.client.own_layers import OwnLayers
from bottlegan.federated.protocol.exchange import RefusalError, Reply, Request
from bottlegan.federated.protocol.handshake import digest_file, introduce, to_text
from bottlegan.federated.protocol.phase1 import Phase1Config
from bottlegan.federated.protocol.phase2 import Phase2Config, draw_network, initial_weights
from bottlegan.federated.simulation import write_patch
from bottlegan.models.document import PRIOR
from bottlegan.models.files import load_model, save_model
from bottlegan.models.networks import Weights, list_normalization
from bottlegan.models.paradigms import BottleGAN
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.training.task import TrainingConfig, lay_out


def ask(kind: str, config: object, arrays: Weights | None = None, number: int = 1) -> Request:
    settings = {"round": number, "seed": 0, "config": json.dumps(to_values(config))}
    return Request(kind, arrays or {}, settings)  # type: ignore[arg-type]


SMALL = Phase2Config(training=TrainingConfig(crop=32))


def joining(name: str, config: Phase2Config = SMALL, **changes: object) -> Request:
    """The request of a compatible server, with optional changes of its handshake."""
    own = replace(introduce(config, PRIOR), **changes)  # type: ignore[arg-type]
    settings = {"client": name, "handshake": to_text(own), "config": json.dumps(to_values(config))}
    return Request("join", settings=settings)  # type: ignore[arg-type]


def join(client: Client, name: str) -> Client:
    client.answer(joining(name))
    return client


def as_tensor(model: BottleGAN, folder: Path) -> Tensor:
    save_model(model, folder / "model.safetensors")
    return torch.from_numpy(np.frombuffer((folder / "model.safetensors").read_bytes(), np.uint8).copy())


def equal(a: Reply, b: Reply) -> bool:
    return a.arrays.keys() == b.arrays.keys() and all(torch.equal(a.arrays[name], b.arrays[name]) for name in a.arrays)


def logged(client: Client, log: str = "lab") -> list[dict[str, object]]:
    return [json.loads(line) for line in (client.state / f"{log}.jsonl").read_text().splitlines()]


def test_joining_counts_the_images(labs: dict[str, Path]) -> None:
    counts = {name: open_client(path).answer(joining(name)) for name, path in labs.items()}
    assert all(reply.arrays.keys() == {"handshake"} for reply in counts.values())
    assert [reply.numbers["unlabeled"] for reply in counts.values()] == [2, 2, 2]
    assert [reply.numbers["test"] for reply in counts.values()] == [1, 1, 1]
    assert sorted(reply.numbers["labeled"] for reply in counts.values()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"protocol": 1}, "it speaks protocol 3, the server 1; install the server's version"),
        ({"package": "9.9"}, r"it runs bottlegan .*, the server 9.9; .*pip install 'bottlegan\[federated\]==9.9'"),
        ({"prior": "ab" * 32}, "its prior is .*, the server's abababababab; install"),
        ({"network": "cd" * 32}, "the network it builds is .*, the server's cdcdcdcdcdcd; install the same versions"),
    ],
)
def test_what_differs_from_the_server_is_refused_by_name_in_both_logs(
    change: dict[str, object], said: str, labs: dict[str, Path]
) -> None:
    client = open_client(labs["lab-01"])
    with pytest.raises(RefusalError, match=said):
        client.answer(joining("lab-01", **change))
    assert logged(client)[-1]["kind"] == "refusal"
    assert re.search(said, str(logged(client, "errors")[-1]["text"]))
    assert not (client.state / "membership.json").exists()


def test_a_server_that_does_not_say_what_it_is_is_refused(labs: dict[str, Path]) -> None:
    client = open_client(labs["lab-01"])
    for handshake in ("", "{}", "[1"):
        request = joining("lab-01")
        request.settings["handshake"] = handshake
        with pytest.raises(RefusalError, match=r"the handshake cannot be read .*pip install"):
            client.answer(request)


def test_a_prior_of_the_federation_is_taken_over_and_forgotten_with_it(
    labs: dict[str, Path], styles: BottleGAN, tmp_path: Path
) -> None:
    client, content = open_client(labs["lab-01"]), as_tensor(styles, tmp_path)
    sent = joining("lab-01", prior=digest_file(tmp_path / "model.safetensors"))
    client.answer(replace(sent, arrays={"prior": content}))
    assert client.prior.read_bytes() == content.numpy().tobytes()
    assert client.answer(ask("contribute", Phase1Config())).arrays
    with pytest.raises(FederationError, match="join ended with ModelFileError"):
        client.answer(replace(sent, arrays={"prior": content[:-9]}))
    join(client, "lab-01")
    assert client.prior == PRIOR


def test_paths_are_relative_to_the_labs_own_document(labs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    client = open_client(labs["lab-01"])
    assert client.state == labs["lab-01"].parent / "state"
    assert len(client.holdings.images()) == 2


def test_an_unknown_key_or_a_missing_file_is_refused(labs: dict[str, Path]) -> None:
    path = labs["lab-01"]
    path.write_text("masks = 'here'\n" + path.read_text())
    with pytest.raises(ConfigError, match="unknown key `masks`"):
        open_client(path)
    with pytest.raises(MissingError, match="no such file"):
        open_client(path.with_name("none.toml"))


def test_a_round_is_the_same_in_a_new_process(labs: dict[str, Path], tiny: Phase2Config) -> None:
    path = next(path for path in labs.values() if load(LabConfig, path).labeled)
    first, weights = join(open_client(path), "x"), initial_weights(tiny, 0)
    request = ask("train", tiny, weights)
    reply = first.answer(request)
    assert reply.arrays.keys() == weights.keys()
    assert reply.numbers.keys() == {"loss"}
    assert reply.numbers["loss"] > 0
    assert equal(open_client(path).answer(request), reply)
    assert not equal(join(open_client(path), "y").answer(request), reply)


def test_images_are_prepared_again_only_if_something_changed(
    labs: dict[str, Path], tiny: Phase2Config, styles: BottleGAN, tmp_path: Path
) -> None:
    client = join(open_client(labs["lab-01"]), "dark")
    lab = client.open_lab(tiny)
    assert client.open_lab(replace(tiny)) is lab
    assert client.open_lab(replace(tiny, rounds=9)) is not lab
    normalize = replace(tiny, mode="normalize")
    content = as_tensor(styles, tmp_path)
    client.answer(Request("styles", {"model": content}))
    lab = client.open_lab(normalize)
    assert client.open_lab(normalize) is lab
    other = copy.deepcopy(styles)
    other.codes.remove("pale")
    client.answer(Request("styles", {"model": as_tensor(other, tmp_path)}))
    assert client.open_lab(normalize) is not lab


def test_a_new_process_does_not_normalize_again(
    labs: dict[str, Path], tiny: Phase2Config, styles: BottleGAN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = next(path for path in labs.values() if load(LabConfig, path).labeled)
    client = join(open_client(path), "dark")
    client.answer(Request("styles", {"model": as_tensor(styles, tmp_path)}))
    config, asked = replace(tiny, mode="normalize"), []
    request = ask("train", config, initial_weights(config, 0))
    mapping = Normalizer.__call__
    monkeypatch.setattr(Normalizer, "__call__", lambda self, image: (asked.append(1), mapping(self, image))[1])
    reply, first = client.answer(request), len(asked)
    assert first > 0
    assert equal(open_client(path).answer(request), reply)
    assert len(asked) == first


@pytest.fixture
def opposites(
    dark: list[Labeled], pale: list[Labeled], styles: BottleGAN, tmp_path: Path
) -> tuple[dict[str, Client], Tensor]:
    """Two labs with the same tissue in opposite styles, in files, and the styles of both."""
    clients = {}
    for name, images in (("dark", dark), ("pale", pale)):
        (tmp_path / name / "test").mkdir(parents=True)
        for row, each in enumerate(images):
            write_patch(tmp_path / name / "test", f"{row}", each.image, each.truth == 1)
        config = LabConfig(images=(Path("test"),), labeled=Path("test"), test=Path("test"))
        clients[name] = join(Client(open_holdings(config, tmp_path / name), tmp_path / name / "state"), name)
    return clients, as_tensor(styles, tmp_path)


def error(client: Client, config: Phase2Config, truth: list[Labeled]) -> float:
    pairs = zip(client.open_lab(config).test, truth, strict=True)
    return float(np.mean([np.square(a.image / 255.0 - b.image / 255.0).mean() for a, b in pairs]))


def test_each_client_uses_its_own_normalizer(
    opposites: tuple[dict[str, Client], Tensor], truth: list[Labeled], tiny: Phase2Config
) -> None:
    clients, content = opposites
    config = replace(tiny, mode="normalize")
    errors = {}
    for swapped in (False, True):
        for name, client in clients.items():
            style = {"dark": "pale", "pale": "dark"}[name] if swapped else name
            join(client, style).answer(Request("styles", {"model": content}))
            errors[name, swapped] = error(client, config, truth)
    for name in clients:
        assert errors[name, False] < 0.1 * errors[name, True]


def test_styles_are_kept_only_if_they_are_whole_and_know_the_lab(
    opposites: tuple[dict[str, Client], Tensor],
) -> None:
    clients, content = opposites
    client = clients["dark"]
    for bad, name in ((content[:-9], "dark"), (content, "nobody"), (torch.zeros(0, dtype=torch.uint8), "dark")):
        with pytest.raises(FederationError, match="styles ended with"):
            join(client, name).answer(Request("styles", {"model": bad}))
        assert not (client.state / "styles.safetensors").exists()
    assert client.answer(Request("styles", {"model": content})) == Reply()
    with pytest.raises(FederationError):
        client.answer(Request("styles", {"model": content[:-9]}))
    assert load_model(client.state / "styles.safetensors").codes.names == ["dark", "pale"]
    assert not [path for path in client.state.iterdir() if path.name.startswith(".")]


def test_a_code_is_uploaded_in_less_than_a_kilobyte(labs: dict[str, Path]) -> None:
    client = join(open_client(labs["lab-01"]), "lab-01")
    reply = client.answer(ask("contribute", Phase1Config()))
    assert sum(tensor.nbytes for tensor in reply.arrays.values()) <= 1000
    assert reply.numbers == {"verdict": pytest.approx(0, abs=2)}


def test_generators_need_the_reference_set(labs: dict[str, Path]) -> None:
    path = labs["lab-01"]
    config = Phase1Config(method="generators")
    path.write_text("images = ['images']\n")
    client = join(open_client(path), "lab-01")
    with pytest.raises(FederationError, match="contribute ended with InputError"):
        client.answer(ask("contribute", config))
    assert "reference set" in str(logged(client, "errors")[-1]["text"])


def test_what_goes_wrong_tells_nothing_of_the_labs_files(labs: dict[str, Path], tiny: Phase2Config) -> None:
    folder = labs["lab-01"].parent
    client = join(open_client(labs["lab-01"]), "lab-01")
    image = next((folder / "test").glob("*_mask.png"))
    image.write_bytes(b"no image")
    requests = [
        joining("lab-01"),
        ask("evaluate", tiny, initial_weights(tiny, 0)),
        ask("train", replace(tiny, mode="normalize"), initial_weights(tiny, 0)),
        Request("train", settings={"config": "{"}),
        Request("contribute"),
    ]
    for request in requests:
        with pytest.raises(FederationError) as caught:
            client.answer(request)
        assert caught.value.__context__ is None
        said = str(caught.value)
        assert not [part for part in (*folder.parts[1:], image.name, image.stem, "/") if part in said]
    failures = [each for each in logged(client) if each["kind"] in ("failure", "refusal")]
    assert len(failures) == len(requests)
    assert image.name in str(logged(client, "errors")[0]["text"])
    shown = (client.state / "lab.jsonl").read_text()
    assert not [part for part in (*folder.parts[1:], image.name) if part in shown]


def test_only_its_owner_can_read_what_a_lab_keeps(labs: dict[str, Path], tiny: Phase2Config) -> None:
    client = join(open_client(labs["lab-01"]), "lab-01")
    with pytest.raises(FederationError):
        client.answer(Request("contribute"))
    kept = [client.state, *client.state.rglob("*")]
    assert len(kept) > 3
    assert [path for path in kept if path.stat().st_mode & 0o077] == []


def test_the_lab_can_read_what_left_it(labs: dict[str, Path], tiny: Phase2Config) -> None:
    client = join(open_client(labs["lab-01"]), "lab-01")
    client.answer(ask("evaluate", tiny, initial_weights(tiny, 0)))
    sent = logged(client)[-1]
    assert (sent["kind"], sent["request"], sent["bytes"]) == ("reply", "evaluate", {"tally": 8 * lay_out(Task()).size})


def test_wrong_weights_of_the_server_are_refused(labs: dict[str, Path], tiny: Phase2Config) -> None:
    client = join(open_client(labs["lab-01"]), "lab-01")
    with pytest.raises(FederationError):
        client.answer(ask("evaluate", tiny, {"odd": torch.zeros(1)}))


@pytest.fixture
def fedbn(labs: dict[str, Path], tiny: Phase2Config) -> tuple[Path, Phase2Config]:
    path = next(path for path in labs.values() if load(LabConfig, path).labeled)
    join(open_client(path), "x")
    return path, replace(tiny, local_normalization=True)


def test_own_layers_outlive_the_process(fedbn: tuple[Path, Phase2Config]) -> None:
    path, config = fedbn
    weights, client = initial_weights(config, 0), open_client(path)
    lasting = [client.answer(ask("train", config, weights, number)) for number in (1, 2)]
    scored = client.answer(ask("evaluate", config, weights, 2))
    join(open_client(path), "x")
    fresh = [open_client(path).answer(ask("train", config, weights, number)) for number in (1, 2)]
    assert all(equal(a, b) for a, b in zip(lasting, fresh, strict=True))
    assert equal(open_client(path).answer(ask("evaluate", config, weights, 2)), scored)
    shared = replace(config, local_normalization=False)
    assert not equal(open_client(path).answer(ask("train", shared, weights, 2)), lasting[1])


def test_a_round_that_is_asked_for_twice_begins_at_the_same_place(fedbn: tuple[Path, Phase2Config]) -> None:
    path, config = fedbn
    weights, client = initial_weights(config, 0), open_client(path)
    client.answer(ask("train", config, weights, 1))
    third = client.answer(ask("train", config, weights, 3))
    assert equal(client.answer(ask("train", config, weights, 3)), third)


def test_joining_anew_forgets_own_layers(fedbn: tuple[Path, Phase2Config]) -> None:
    path, config = fedbn
    weights, client = initial_weights(config, 0), open_client(path)
    fresh = client.answer(ask("train", config, weights, 2))
    join(client, "x")
    client.answer(ask("train", config, weights, 1))
    join(client, "x")
    assert equal(client.answer(ask("train", config, weights, 2)), fresh)


def test_own_layers_hold_against_the_global_ones(fedbn: tuple[Path, Phase2Config]) -> None:
    path, config = fedbn
    weights, client = initial_weights(config, 0), open_client(path)
    client.answer(ask("train", config, weights, 1))
    own = list_normalization(draw_network(config, 0).network)
    odd = {name: tensor + 3 * (name in own) for name, tensor in weights.items()}
    for kind in ("train", "evaluate"):
        assert equal(client.answer(ask(kind, config, odd, 2)), client.answer(ask(kind, config, weights, 2)))
    shared = replace(config, local_normalization=False)
    assert not equal(client.answer(ask("train", shared, odd, 2)), client.answer(ask("train", shared, weights, 2)))


def test_a_networks_own_layers_are_those_that_normalize_with_their_statistics(tiny: Phase2Config) -> None:
    assert {name.split(".")[-2] for name in list_normalization(draw_network(tiny, 0).network)} == {
        "enter_norm",
        "refine_norm",
    }
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)))
    statistics = {"1.running_mean", "1.running_var"}
    assert list_normalization(network) == {"1.weight", "1.bias", "2.0.weight", "2.0.bias", *statistics}


def test_own_layers_by_round(tmp_path: Path) -> None:
    layers = OwnLayers(tmp_path / "own.safetensors")
    old, new = {"a_norm.weight": torch.zeros(2)}, {"a_norm.weight": torch.ones(2)}
    assert layers.before(1) == layers.after(1) == {}
    layers.save(4, old, new)
    found = [layers.before(4), layers.before(5), layers.after(4), layers.after(9)]
    assert [float(each["a_norm.weight"][0]) for each in found] == [0, 1, 1, 1]
    # An earlier round must belong to another run.
    assert layers.before(3) == layers.after(3) == {}
