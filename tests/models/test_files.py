import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bottlegan.core.errors import InputError, MissingError, ModelFileError
from bottlegan.models.config import GeneratorConfig, ModelConfig, Paradigm
from bottlegan.models.document import FORMAT, KEY
from bottlegan.models.files import load_model, save_model
from bottlegan.models.paradigms import PARADIGMS, BottleGAN, StyleModel, build_model
from bottlegan.models.weights import read_document
from bottlegan.stain.style import REFERENCE

Values = dict[str, Any]
Tensors = dict[str, Tensor]


def built(paradigm: Paradigm = "many-one-many", kind: str = "pixel") -> StyleModel:
    generator = GeneratorConfig(kind="unet" if kind == "unet" else "pixel", width=4, depth=1, mapping=3)
    random = torch.Generator().manual_seed(0)
    model = build_model(ModelConfig(paradigm=paradigm, code_size=2, generator=generator), ("lab-1", "Köln"), random)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3, generator=random)
    return model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A good model file."""
    save_model(built(), tmp_path / "m.safetensors", {"seed": 3}, REFERENCE)
    return tmp_path / "m.safetensors"


def rewrite(path: Path, change: Callable[[Values, Tensors], object]) -> None:
    """Change the document and the tensors of a file without any check."""
    with safe_open(path, framework="pt") as file:
        values = json.loads(file.metadata()[KEY])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
    change(values, tensors)
    save_file(tensors, path, {KEY: json.dumps(values)})


def refused(path: Path, message: str) -> str:
    with pytest.raises(ModelFileError, match=message) as error:
        load_model(path)
    text = str(error.value)
    assert text.startswith(str(path))
    assert text.isprintable()
    assert len(text) <= 600
    return text


@pytest.mark.parametrize("paradigm", PARADIGMS)
@pytest.mark.parametrize("kind", ["pixel", "unet"])
def test_a_loaded_model_maps_exactly_as_the_saved_one(paradigm: Paradigm, kind: str, tmp_path: Path) -> None:
    model, images = built(paradigm, kind), torch.rand(2, 3, 9, 7, generator=torch.Generator().manual_seed(1))
    save_model(model, tmp_path / "m.safetensors")
    loaded = load_model(tmp_path / "m.safetensors")
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    assert loaded.codes.names == ["lab-1", "Köln"]
    assert not loaded.training
    assert model.training
    for (name, ours), (other, theirs) in zip(model.named_parameters(), loaded.named_parameters(), strict=True):
        assert (name, ours.requires_grad) == (other, theirs.requires_grad)
        assert torch.equal(ours, theirs)
    with torch.no_grad():
        assert torch.equal(model.normalize(images, model.codes["Köln"]), loaded.normalize(images, loaded.codes["Köln"]))
        assert torch.equal(model.restain(images, model.codes["lab-1"]), loaded.restain(images, loaded.codes["lab-1"]))


def test_the_same_model_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    save_model(load_model(path), tmp_path / "again.safetensors", {"seed": 3}, REFERENCE)
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    save_model(built().eval(), path, {"b": 1, "a": 2})
    first = path.read_bytes()
    save_model(built(), path, {"a": 2, "b": 1})
    assert path.read_bytes() == first
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_document_says_what_the_model_is(path: Path) -> None:
    record = {"steps": 10, "loss": 0.5, "preset": "paper"}
    save_model(built(), path, record, REFERENCE)
    found = read_document(path)
    assert (found.format, found.model, found.styles) == (FORMAT, built().config, ("lab-1", "Köln"))
    assert found.record == record
    assert [type(value) for value in found.record.values()] == [float, str, int]  # by name: loss, preset, steps
    assert found.reference == REFERENCE
    save_model(built(), path)
    assert (read_document(path).reference, read_document(path).record) == (None, {})


def test_a_style_added_to_a_loaded_model_is_saved_with_it(path: Path) -> None:
    model = load_model(path)
    before = model.codes["Köln"].detach().clone()
    model.codes.add("new", torch.tensor([0.5, -1.0]))
    model.codes.remove("lab-1")
    save_model(model, path)
    loaded = load_model(path)
    assert loaded.codes.names == ["Köln", "new"]
    assert torch.equal(loaded.codes["Köln"], before)
    assert loaded.codes["new"].tolist() == [0.5, -1]


def test_a_model_without_any_style_is_a_model(path: Path) -> None:
    model = load_model(path)
    for name in ("lab-1", "Köln"):
        model.codes.remove(name)
    save_model(model, path)
    assert load_model(path).codes.names == []


def test_models_load_by_class(path: Path) -> None:
    assert isinstance(BottleGAN.load(str(path)), BottleGAN)
    assert isinstance(StyleModel.load(path), BottleGAN)
    built("many-one").save(path)
    with pytest.raises(ModelFileError, match=r"holds a many-one model, not a BottleGAN; load it with ManyToOne\.load"):
        BottleGAN.load(path)


def test_what_is_read_is_no_view_of_the_file(path: Path) -> None:
    model = load_model(path)
    before = model.codes.table.detach().clone()
    with path.open("r+b") as file:
        content = file.read()
        file.seek(8 + int.from_bytes(content[:8], "little"))
        file.write(bytes(len(content) - file.tell()))
    assert torch.equal(model.codes.table, before)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such model file"):
        load_model(tmp_path / "nothing.safetensors")
    refused(tmp_path, "is not a file")


@pytest.mark.parametrize(
    "content", [b"", b"short", b"this is no model at all, only text", b"\xff" * 100, b"\x02" + bytes(7) + b"{}"]
)
def test_other_files_are_refused(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    refused(path, r"not a whole safetensors file|not a BottleGAN model")


def test_a_pickle_is_refused_unread(path: Path) -> None:
    torch.save({"weights": torch.zeros(3)}, path)
    refused(path, "not a whole safetensors file")


@given(part=st.floats(0, 1, exclude_max=True))
def test_a_cut_off_file_is_refused(part: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("cut") / "m.safetensors"
    save_model(built(), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    refused(path, "not a whole safetensors file .*copy or download it again")


@settings(max_examples=200)
@given(data=st.data())
def test_a_damaged_byte_is_refused_or_harmless(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("damaged") / "m.safetensors"
    save_model(built(), path, {"seed": 3}, REFERENCE)
    content = bytearray(path.read_bytes())
    # Mostly in the header, where damage can do most.
    place = data.draw(st.integers(0, 2 * int.from_bytes(content[:8], "little"))) % len(content)
    content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        model = load_model(path)
    except ModelFileError:
        return
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


def test_foreign_safetensors_are_refused(path: Path) -> None:
    for metadata in (None, {"format": "pt"}):
        save_file({"weight": torch.zeros(2)}, path, metadata)
        refused(path, "not a BottleGAN model; give a safetensors file that `bottlegan train` wrote")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("9" * 10_000, "not JSON"),
        ("[]", "document"),
        ("1", "document"),
        ("null", "document"),
        ('"text"', "document"),
        ("{}", "key `format` is missing"),
        ('{"format": NaN}', "JSON"),
    ],
)
def test_a_document_that_is_none_is_refused(text: str, message: str, path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, path, {KEY: text})
    refused(path, message)


def test_an_endless_document_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bottlegan.models.document.MAX_TEXT", 100)
    refused(path, "at most 100 are read")


def test_a_newer_file_asks_for_an_upgrade_whatever_else_it_holds(path: Path) -> None:
    rewrite(path, lambda values, _: values.update(format=FORMAT + 1, novelty=[1, 2]))
    refused(path, "written by a newer BottleGAN .*; upgrade")


def test_an_older_file_is_to_be_made_again_whatever_else_it_holds(path: Path) -> None:
    rewrite(path, lambda values, _: values.update(format=FORMAT - 1, reference_profiles=240))
    refused(path, rf"written by an older BottleGAN \(format {FORMAT - 1}, this one reads {FORMAT}\); train or fit")


def generator(values: Values) -> Values:
    return values["model"]["generator"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.update(format=0), f"`format` must be from {FORMAT} to {FORMAT}, got 0"),
        (lambda v: v.update(format="1"), "`format`.*valid integer"),
        (lambda v: v.update(format=True), "`format`.*valid integer"),
        (lambda v: v.pop("styles"), "key `styles` is missing"),
        (lambda v: v.pop("record"), "key `record` is missing"),
        (lambda v: v.update(novelty=1), "unknown key `novelty`"),
        (lambda v: v.update({"a\n\x1b[31m": 1}), "unknown key `a"),
        (lambda v: v.update(format="x" * 10_000), "`format`"),
        (lambda v: v["model"].update(novelty=1), r"unknown key `model\.novelty`"),
        (lambda v: v["model"].update(paradigm="one-two"), r"`model\.paradigm`"),
        (lambda v: v["model"].update(code_size="2"), r"`model\.code_size`"),
        (lambda v: generator(v).update(width=4.0), r"`model\.generator\.width`"),
        (lambda v: generator(v).update(depth=0), "unexpected tensor `normalizer"),
        (lambda v: generator(v).update(depth=0, skip=False), "without hidden layers is its linear map"),
        (lambda v: generator(v).update(depth=0, kind="unet"), "without hidden layers is its linear map"),
        (lambda v: generator(v).update(kind="resnet"), r"`model\.generator\.kind`"),
        (lambda v: v["record"].update(note=[1]), r"`record\.note"),
        (lambda v: v["record"].update(note=float("inf")), "JSON"),
        (lambda v: v.update(styles="lab-1"), "`styles`"),
        (lambda v: v.update(encoders=["64"]), "`encoders.*valid integer"),
        (lambda v: v.update(encoders=[-1]), r"`encoders\[0\]` must be from 1 to 1024, got -1"),
        (lambda v: v.update(encoders=[8]), r"tensor `encoders\.0\.basis` is missing"),
        (lambda v: v["reference"].update(eosin=[1.0, 2.0]), r"`reference\.eosin"),
        (lambda v: v["reference"].update(eosin=[1.0, 2.0, -1.0]), r"`reference\.eosin` must be optical densities"),
        (lambda v: v["reference"].update(hematoxylin=[1.0, 2.0, 1e9]), r"`reference\.hematoxylin` must be"),
        (lambda v: v.update(styles=["lab-1"]), "1 style names for 2 codes"),
        (lambda v: v.update(styles=["a", "b", "c"]), "3 style names for 2 codes"),
        (lambda v: v.update(styles=["a", "a"]), "same name"),
        (lambda v: v.update(styles=["a", ""]), "cannot be called ''"),
        (lambda v: v.update(styles=["a", "b\x00"]), "cannot be called"),
        (lambda v: v.update(styles=["a", "b\n"]), "cannot be called"),
        (lambda v: v.update(styles=["a", "../b"]), "cannot be called"),
        (lambda v: v.update(styles=["a", "..\\b"]), "cannot be called"),
        (lambda v: v["model"].update(paradigm="many-one-one", code_size=3), "as many numbers in a code as styles"),
    ],
)
def test_a_wrong_document_is_named(change: Callable[[Values], object], message: str, path: Path) -> None:
    rewrite(path, lambda values, _: change(values))
    refused(path, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: generator(v).update(width=0), "width`: input should be"),
        (lambda v: generator(v).update(width=10**5), "width`: input should be"),
        (lambda v: generator(v).update(width=10**400), "width`: input should be less .* characters"),
        (lambda v: generator(v).update(width=-1), "width`: input should be"),
        (lambda v: generator(v).update(depth=-1), "depth`: input should be"),
        (lambda v: generator(v).update(depth=10**6), "depth`: input should be"),
        (lambda v: generator(v).update(mapping=10**6), "mapping`: input should be"),
        (lambda v: v["model"].update(code_size=0), "code_size`: input should be"),
        (lambda v: v["model"].update(code_size=10**9), "code_size`: input should be"),
        (lambda v: v.update(styles=[str(i) for i in range(100_001)]), "styles` must be from 0 to 100000"),
        (
            lambda v: v["model"].update(paradigm="many-one-one") or v.update(styles=[str(i) for i in range(1001)]),
            "styles` must be from 0 to 1000,",
        ),
        (lambda v: v.update(encoders=[10**9]), r"encoders\[0\]` must be from 1 to 1024, got a number of 10 digits"),
        (lambda v: v.update(encoders=[1024] * 16), r"`encoders\.0\.basis` is missing"),
        # All within bounds, and still hundreds of gigabytes if they were believed.
        (lambda v: generator(v).update(kind="unet", width=4096, depth=16, mapping=4096), "shape|missing"),
        (lambda v: v["model"].update(code_size=4096), "shape"),
    ],
)
def test_absurd_sizes_take_no_memory(change: Callable[[Values], object], message: str, path: Path) -> None:
    rewrite(path, lambda values, _: change(values))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(path, message)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


LAST = "normalizer.last.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(LAST), f"tensor `{LAST}` is missing"),
        (lambda t: t.pop("codes.table"), r"tensor `codes\.table` is missing"),
        (lambda t: t.update(extra=torch.zeros(1)), "unexpected tensor `extra`"),
        (lambda t: t.update({"e\n\x1b" * 900: torch.zeros(1)}), "unexpected tensor"),
        (lambda t: t.update({LAST: torch.zeros(3, 5, 1, 1)}), r"shape \(3, 5, 1, 1\), expected \(3, 4, 1, 1\)"),
        (lambda t: t.update({LAST: torch.zeros(12)}), r"shape \(12,\)"),
        (lambda t: t.update({"codes.table": torch.zeros(4)}), r"shape \(4,\)"),
        (lambda t: t.update({"codes.table": torch.zeros(3, 2)}), "2 style names for 3 codes"),
        (lambda t: t.update({"codes.table": torch.zeros(1, 2)}), "2 style names for 1 codes"),
        (lambda t: t.update({LAST: t[LAST].half()}), f"`{LAST}` is F16, it must be"),
        (lambda t: t.update({LAST: t[LAST].double()}), f"`{LAST}` is F64, it must be"),
        (lambda t: t.update({LAST: t[LAST].int()}), f"`{LAST}` is I32, it must be"),
        (lambda t: t.update({LAST: t[LAST] * torch.nan}), f"`{LAST}` holds NaN"),
        (lambda t: t["codes.table"][1].fill_(-torch.inf), "`codes.table` holds NaN or infinity"),
    ],
)
def test_wrong_tensors_are_named(change: Callable[[Tensors], object], message: str, path: Path) -> None:
    rewrite(path, lambda _, tensors: change(tensors))
    refused(path, message)


def spoil(model: StyleModel) -> None:
    nn.init.constant_(model.codes.table, torch.nan)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # about the wrong record, which is refused then
@pytest.mark.parametrize(
    ("change", "record", "message"),
    [
        (spoil, {}, "holds NaN"),
        (lambda model: model.half(), {}, "is F16, it must be F32; save it again"),
        (lambda model: model.codes.names.append("a/b"), {}, "cannot be called"),
        (lambda model: model.codes.names.append("third"), {}, "3 style names for 2 codes"),
        (lambda model: None, {"loss": float("nan")}, "JSON"),
        (lambda model: None, {"labs": ["a"]}, r"`record\.labs"),
    ],
)
def test_what_could_not_be_read_is_not_written(
    change: Callable[[StyleModel], object], record: dict[str, Any], message: str, path: Path
) -> None:
    model, before = built(), path.read_bytes()
    change(model)
    with pytest.raises(ModelFileError, match=message):
        save_model(model, path, record)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_save_leaves_the_older_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(target: Path, content: bytes) -> None:
        with target.open("wb") as file:
            file.write(content[:50])
        raise OSError("no space left")

    before = path.read_bytes()
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match="no space left"):
        save_model(built("many-one"), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such folder"):
        save_model(built(), tmp_path / "nowhere" / "m.safetensors")
    with pytest.raises(InputError, match="is a folder"):
        save_model(built(), tmp_path)
