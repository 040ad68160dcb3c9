import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from bottlegan.core.config import parse, to_values
from bottlegan.core.errors import ConfigError, InputError
from bottlegan.core.progress import Json, Silent
from bottlegan.core.seeding import numpy_stream, torch_stream
from bottlegan.core.stamp import BLANK, stamp
from bottlegan.federated.client.style import Contribution, contribute
from bottlegan.federated.protocol.phase1 import Phase1Config, Phase1Method, expected_shapes
from bottlegan.federated.server import styles
from bottlegan.federated.server.uploads import UploadStore
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.document import PRIOR
from bottlegan.models.files import to_model
from bottlegan.models.paradigms import BottleGAN
from bottlegan.models.weights import ModelWeights, read_weights
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import PAPER, REFERENCE, Style, draw_style
from bottlegan.training import adversarial
from bottlegan.training.adversarial import AdversarialConfig
from bottlegan.training.distill import DistillConfig
from bottlegan.training.gan import TrainConfig

SMALL = replace(
    TrainConfig(), model=ModelConfig(generator=GeneratorConfig(width=8, depth=1, mapping=8)), batch=8, pixels=256
)
BY_CODE = Phase1Config()
BY_GENERATORS = Phase1Config(
    method="generators",
    train=replace(SMALL, steps=2, warm_steps=2, check_every=2),
    distill=DistillConfig(train=replace(SMALL, steps=20, rate=1e-3)),
)
BY_CRITICS = Phase1Config(method="adversarial", adversarial=AdversarialConfig(steps=2, server_steps=3))
STYLES = [draw_style(numpy_stream(2, k), f"lab-{k}", PAPER) for k in range(3)]


def assemble(*args: object, **options: object) -> BottleGAN:
    return to_model(styles.assemble(*args, **options))  # type: ignore[arg-type, return-value]


def draw(first: int, count: int) -> Tensor:
    return torch.stack([draw_tissue(12, first + index, 128).concentration for index in range(count)])


def look(tissue: Tensor, style: Style) -> list[Pixels]:
    return from_batch(render(tissue, style, torch_stream(0, style.name)))


@pytest.fixture(scope="module")
def prior() -> ModelWeights:
    return read_weights(PRIOR)


@pytest.fixture(scope="module")
def reference_set() -> list[Pixels]:
    return from_batch(render(draw(100, 8), REFERENCE))


@pytest.fixture(scope="module")
def labs() -> dict[str, list[Pixels]]:
    return {style.name: look(draw(10 * k, 2), style) for k, style in enumerate(STYLES)}


@pytest.fixture(scope="module")
def uploads(
    labs: dict[str, list[Pixels]], prior: ModelWeights, reference_set: list[Pixels]
) -> dict[str, dict[str, Contribution]]:
    """The uploads of each lab, by kind."""
    return {
        config.method: {
            name: contribute(images, config, reference_set=reference_set, prior=prior, seed=0)
            for name, images in labs.items()
        }
        for config in (BY_CODE, BY_GENERATORS, BY_CRITICS)
    }


def arrays(found: dict[str, Contribution]) -> dict[str, dict[str, Tensor]]:
    return {name: each.arrays for name, each in found.items()}


@pytest.fixture(scope="module")
def models(
    uploads: dict[str, dict[str, Contribution]], prior: ModelWeights, reference_set: list[Pixels]
) -> dict[str, BottleGAN]:
    return {
        config.method: assemble(
            arrays(uploads[config.method]), config, reference_set=reference_set, prior=prior, seed=0
        )
        for config in (BY_CODE, BY_GENERATORS)
    }


@pytest.mark.parametrize("upload", ["code", "generators"])
def test_the_global_model_normalizes_and_restains_every_lab(upload: str, models: dict[str, BottleGAN]) -> None:
    model, tissue = models[upload], draw(50, 2)
    assert model.codes.names == ["lab-0", "lab-1", "lab-2"]
    truth = render(tissue, REFERENCE)
    for style in STYLES:
        styled = torch.cat([to_batch(levels) for levels in look(tissue, style)])
        with torch.no_grad():
            normalized = model.normalize(styled, model.codes[style.name])
            restained = model.restain(truth, model.codes[style.name])
        nothing = (styled - truth).square().mean()
        assert (normalized - truth).square().mean() < 0.2 * nothing
        assert (restained - styled).square().mean() < 0.3 * nothing


def test_uploads_are_as_expected(uploads: dict[str, dict[str, Contribution]], prior: ModelWeights) -> None:
    for config in (BY_CODE, BY_GENERATORS, BY_CRITICS):
        shapes = expected_shapes(config, prior.document)
        for found in uploads[config.method].values():
            assert {name: tuple(tensor.shape) for name, tensor in found.arrays.items()} == shapes
            assert {tensor.dtype for tensor in found.arrays.values()} == {torch.float32}
            assert not any("reference" in name for name in found.arrays)
            assert found.verdict in {"good", "uncertain"}


@pytest.mark.parametrize(("method", "most"), [("code", 1000), ("generators", 500_000), ("adversarial", 500_000)])
def test_uploads_are_small(method: Phase1Method, most: int, prior: ModelWeights) -> None:
    shapes = expected_shapes(Phase1Config(method=method), prior.document)
    assert len(save({name: torch.zeros(shape) for name, shape in shapes.items()})) <= most


class Stopping(Silent):
    """Stops training at its second check."""

    def __init__(self) -> None:
        self.looks: list[Json] = []

    def event(self, kind: str, **fields: Json) -> None:
        self.looks.append(fields["step"])
        if len(self.looks) == 2:
            raise KeyboardInterrupt


class Counting(Stopping):
    """Only counts calls."""

    def event(self, kind: str, **fields: Json) -> None:
        self.looks.append(fields["step"])


def test_a_gan_that_was_interrupted_goes_on_at_labs_and_on_the_server(
    labs: dict[str, list[Pixels]],
    prior: ModelWeights,
    reference_set: list[Pixels],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for steps in (adversarial.LAB, adversarial.SERVER):
        monkeypatch.setitem(steps, "cpu", replace(SMALL, steps=3, warm_steps=0, crops=2, crop=32, check_every=1))
    config = Phase1Config(method="adversarial")
    images, given = labs["lab-1"], {"reference_set": reference_set, "prior": prior, "seed": 0}
    whole = contribute(images, config, **given)
    made = styles.assemble({"lab-1": whole.arrays}, config, **given)
    with pytest.raises(KeyboardInterrupt):
        contribute(images, config, **given, kept=tmp_path / "lab", progress=Stopping())
    with pytest.raises(KeyboardInterrupt):
        styles.assemble({"lab-1": whole.arrays}, config, **given, kept=tmp_path / "server", progress=Stopping())
    seen = Counting()
    resumed = contribute(images, config, **given, kept=tmp_path / "lab", progress=seen)
    remade = styles.assemble({"lab-1": whole.arrays}, config, **given, kept=tmp_path / "server", progress=seen)
    assert seen.looks == [2, 3, 2, 3], "the first step must not be taken again"
    assert save(resumed.arrays) == save(whole.arrays)
    assert {name: array.tobytes() for name, array in remade.arrays.items()} == {
        name: array.tobytes() for name, array in made.arrays.items()
    }
    contribute(images, config, **given, kept=tmp_path / "lab", progress=seen)
    assert seen.looks == [2, 3, 2, 3], "a lab that is asked again need not train again"


def test_training_of_other_images_is_not_gone_on_with(
    labs: dict[str, list[Pixels]],
    prior: ModelWeights,
    reference_set: list[Pixels],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny = replace(SMALL, steps=2, warm_steps=0, crops=2, crop=32, check_every=1)
    monkeypatch.setitem(adversarial.LAB, "cpu", tiny)
    config, given = Phase1Config(method="adversarial"), {"reference_set": reference_set, "prior": prior, "seed": 0}
    with pytest.raises(KeyboardInterrupt):
        contribute(labs["lab-1"], config, **given, kept=tmp_path, progress=Stopping())
    seen = Counting()
    contribute(labs["lab-2"], config, **given, kept=tmp_path, progress=seen)
    assert seen.looks == [1, 2]


def test_the_server_distills_what_critics_made_with_critics(
    uploads: dict[str, dict[str, Contribution]], prior: ModelWeights, reference_set: list[Pixels]
) -> None:
    model = assemble(arrays(uploads["adversarial"]), BY_CRITICS, reference_set=reference_set, prior=prior, seed=0)
    assert model.codes.names == ["lab-0", "lab-1", "lab-2"]
    with torch.no_grad():
        output = model.restain(to_batch(reference_set[0]), model.codes["lab-1"])
    assert output.isfinite().all()


@pytest.mark.parametrize("config", [BY_CODE, BY_GENERATORS], ids=lambda config: config.method)
def test_contributing_again_gives_the_same_bytes(
    config: Phase1Config,
    uploads: dict[str, dict[str, Contribution]],
    labs: dict[str, list[Pixels]],
    prior: ModelWeights,
    reference_set: list[Pixels],
) -> None:
    again = contribute(labs["lab-1"], config, reference_set=reference_set, prior=prior, seed=0)
    assert save(again.arrays) == save(uploads[config.method]["lab-1"].arrays)


def test_images_of_no_tissue_are_refused(prior: ModelWeights) -> None:
    blank = look(torch.zeros(1, 2, 128, 128), REFERENCE)
    assert contribute(blank, BY_CODE, reference_set=None, prior=prior, seed=0).verdict == "refused"


def test_who_joins_or_leaves_changes_no_other_code(
    uploads: dict[str, dict[str, Contribution]], models: dict[str, BottleGAN], prior: ModelWeights
) -> None:
    found, whole = arrays(uploads["code"]), models["code"].state_dict()
    fewer = assemble(
        {name: found[name] for name in ("lab-2", "lab-0")}, BY_CODE, reference_set=None, prior=prior, seed=0
    )
    assert fewer.codes.names == ["lab-0", "lab-2"]
    for name in fewer.codes.names:
        assert torch.equal(fewer.codes[name], found[name]["code"])
        assert torch.equal(fewer.codes[name], models["code"].codes[name])
    for name, tensor in fewer.state_dict().items():
        assert name == "codes.table" or torch.equal(tensor, whole[name])
    assert not prior.document.styles, "the prior itself must stay as it is"


@pytest.mark.parametrize("config", [BY_CODE, BY_GENERATORS], ids=lambda config: config.method)
def test_the_order_of_uploads_does_not_matter(
    config: Phase1Config,
    uploads: dict[str, dict[str, Contribution]],
    models: dict[str, BottleGAN],
    prior: ModelWeights,
    reference_set: list[Pixels],
) -> None:
    backward = dict(reversed(arrays(uploads[config.method]).items()))
    again = assemble(backward, config, reference_set=reference_set, prior=prior, seed=0)
    assert again.codes.names == models[config.method].codes.names
    first = models[config.method].state_dict()
    assert all(torch.equal(tensor, first[name]) for name, tensor in again.state_dict().items())


def test_generators_need_a_reference_set(
    uploads: dict[str, dict[str, Contribution]], labs: dict[str, list[Pixels]], prior: ModelWeights
) -> None:
    with pytest.raises(InputError, match="without a reference set"):
        contribute(labs["lab-0"], BY_GENERATORS, reference_set=None, prior=prior, seed=0)
    with pytest.raises(InputError, match="without a reference set"):
        assemble(arrays(uploads["generators"]), BY_GENERATORS, reference_set=[], prior=prior, seed=0)


def test_an_upload_of_other_settings_is_named(
    uploads: dict[str, dict[str, Contribution]], prior: ModelWeights, reference_set: list[Pixels]
) -> None:
    mixed = {**arrays(uploads["generators"]), "old": {"code": torch.zeros(prior.document.model.code_size)}}
    with pytest.raises(InputError, match=r"the upload of old: tensor .* is missing; let the client upload again"):
        assemble(mixed, BY_GENERATORS, reference_set=reference_set, prior=prior, seed=0)


def test_settings_survive_a_file_and_are_checked() -> None:
    config = replace(BY_GENERATORS, distill=DistillConfig(adversarial=True))
    assert parse(Phase1Config, to_values(config), "file") == config
    with pytest.raises(ConfigError, match="many-one-many"):
        Phase1Config(train=TrainConfig(model=ModelConfig(paradigm="many-many")))
    with pytest.raises(ConfigError, match="adversarial"):
        parse(DistillConfig, {"train": {"model": {"generator": to_values(GeneratorConfig(kind="unet"))}}}, "file")


ODD_NAMES = ["lab 1", "lab_1", "Lab 1", ".hidden", "Straße" * 30, "a.safetensors", "ä" * 200]


def test_the_store_gives_back_what_was_put(tmp_path: Path) -> None:
    store = UploadStore(tmp_path / "uploads")
    assert store.names() == []
    assert store.read_all() == {}
    for number, name in enumerate(ODD_NAMES):
        store.put(name, {"code": torch.full((3,), float(number))})
    store.put("lab 1", {"code": torch.full((3,), 9.0)})
    again = UploadStore(tmp_path / "uploads")
    assert again.names() == sorted(ODD_NAMES) == list(again.read_all())
    assert again.read_all()["lab_1"]["code"].tolist() == [1, 1, 1]
    assert again.read_all()["lab 1"]["code"].tolist() == [9, 9, 9]
    again.remove("lab 1")
    assert store.names() == sorted(set(ODD_NAMES) - {"lab 1"})
    with pytest.raises(InputError, match="holds no upload of lab 1; there are: "):
        again.remove("lab 1")


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\nb"])
def test_the_store_refuses_names_that_lead_elsewhere(name: str, tmp_path: Path) -> None:
    for call in (lambda store: store.put(name, {"code": torch.zeros(1)}), lambda store: store.remove(name)):
        with pytest.raises(InputError, match="cannot be called"):
            call(UploadStore(tmp_path))


@pytest.mark.parametrize(
    ("upload", "fault"),
    [
        ({"code": torch.tensor([1.0, torch.nan])}, "NaN"),
        ({"code": torch.zeros(2, dtype=torch.float64)}, "float64"),
        ({"other": torch.zeros(2)}, "no style code"),
    ],
)
def test_the_store_neither_takes_nor_gives_what_cannot_be_used(
    upload: dict[str, Tensor], fault: str, tmp_path: Path
) -> None:
    store = UploadStore(tmp_path)
    with pytest.raises(InputError, match=fault):
        store.put("lab", upload)
    assert store.names() == []
    store.put("lab", {"code": torch.zeros(2)})
    (path,) = tmp_path.iterdir()
    path.write_bytes(stamp(save(upload, say("lab"))))
    with pytest.raises(InputError, match=rf"{path.name}: .*{fault}.*; delete it, and let the client upload again"):
        store.read_all()


def say(name: str) -> dict[str, str]:
    return {"client": json.dumps({"checksum": BLANK, "client": name})}


def test_broken_files_in_the_store_are_named(tmp_path: Path) -> None:
    store = UploadStore(tmp_path)
    store.put("lab", {"code": torch.zeros(2)})
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    (tmp_path / ".half-written.safetensors").write_bytes(whole[:20])
    assert store.names() == ["lab"], "what a crash left behind is no upload"
    bad = {
        "not a whole upload": whole[:-3],
        "not named after the client": save(load(whole), say("other")),
        "is not named": save(load(whole), say("../lab")),
    }
    for fault, content in bad.items():
        path.write_bytes(content)
        for call in (store.names, store.read_all):
            with pytest.raises(InputError, match=rf"{path.name}: .*{fault}.*; delete it") as raised:
                call()
            assert "\n" not in str(raised.value)
