import copy
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import bottlegan
from bottlegan.core.errors import InputError, MissingError, ModelFileError
from bottlegan.core.progress import EventLog
from bottlegan.imaging.files import Pixels, write_image
from bottlegan.imaging.tensors import from_batch, to_batch, to_levels
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.files import save_model
from bottlegan.models.paradigms import BottleGAN, build_model
from bottlegan.models.style_codes import StyleCodes
from bottlegan.models.weights import read_document
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.normalize.record import FIGURES
from bottlegan.onboarding.verdict import Verdict
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES, REFERENCE
from bottlegan.training.prior import PriorConfig, begin_prior

LAB = LABORATORIES[6]
BLANK = np.full((64, 64, 3), 240, np.uint8)


@pytest.fixture(scope="module")
def tissue() -> Tensor:
    return torch.stack([draw_tissue(seed=9, index=index, size=96).concentration for index in range(6)])


@pytest.fixture(scope="module")
def images(tissue: Tensor) -> list[Pixels]:
    return from_batch(render(tissue[:3], LAB))


@pytest.fixture(scope="module")
def model(plain_prior: BottleGAN) -> BottleGAN:
    """A small network whose layers add a little to the affine maps."""
    generator = GeneratorConfig(width=8, depth=2, mapping=8)
    config = PriorConfig(model=ModelConfig(code_size=24, generator=generator))
    built = begin_prior(config, seed=0)
    built.encoders = plain_prior.encoders
    random = torch.Generator().manual_seed(0)
    for part in (built.normalizer, built.restainer):
        part.last.weight.data.normal_(std=0.02, generator=random)
    return built


@pytest.fixture(scope="module")
def fitted(images: list[Pixels], model: BottleGAN) -> Normalizer:
    return Normalizer.fit(images, model=model, force=True)  # whatever is thought of so small a model


def known(statistics: str = "frozen", kind: str = "pixel", styles: tuple[str, ...] = ("a", "b")) -> BottleGAN:
    """A model with weights as after training, which knows some styles, but nothing of a reference set."""
    generator = GeneratorConfig(width=4, depth=1, mapping=8, statistics=statistics, kind=kind)  # type: ignore[arg-type]
    random = torch.Generator().manual_seed(0)
    built = build_model(ModelConfig(code_size=3, generator=generator), styles, random)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=random)
    assert isinstance(built, BottleGAN)
    return built


def noise(*shape: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)


def directly(model: BottleGAN, code: Any, image: Pixels, direction: str = "normalize") -> Pixels:
    """What the network of torch makes of a whole image."""
    with torch.no_grad():
        return from_batch(getattr(model, direction)(to_batch(image), torch.as_tensor(code)))[0]


def apart(left: Pixels, right: Pixels) -> int:
    return int(np.abs(np.subtract(left, right, dtype=int)).max())


def test_it_brings_a_lab_closer_to_the_reference_stain_and_back(
    fitted: Normalizer, tissue: Tensor, images: list[Pixels]
) -> None:
    content = from_batch(render(tissue[:3], REFERENCE))
    error = [np.abs(np.subtract(fitted(i), c, dtype=float)).mean() for i, c in zip(images, content, strict=True)]
    before = [np.abs(np.subtract(i, c, dtype=float)).mean() for i, c in zip(images, content, strict=True)]
    assert max(error) < 0.5 * min(before)
    back = [np.abs(np.subtract(fitted.restain(fitted(image)), image, dtype=float)).mean() for image in images]
    assert max(back) < 0.5 * min(before)


def test_fitting_twice_gives_the_same_bytes(model: BottleGAN, images: list[Pixels], fitted: Normalizer) -> None:
    before = torch.random.get_rng_state()
    again = Normalizer.fit(np.stack(images), model=model, force=True)
    assert np.array_equal(again.code, fitted.code)
    assert np.array_equal(again(images[0]), fitted(images[0]))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_shipped_prior_is_the_default(images: list[Pixels]) -> None:
    normalizer = bottlegan.Normalizer.fit(images[0], name="Köln")
    assert normalizer.model.document.reference == REFERENCE
    assert normalizer.diagnosis is not None
    assert normalizer.diagnosis.verdict.value in repr(normalizer)
    assert "Köln" in repr(normalizer)


def test_files_folders_and_arrays_are_the_same_images(
    fitted: Normalizer, model: BottleGAN, images: list[Pixels], tmp_path: Path
) -> None:
    for index, image in enumerate(images):
        write_image(tmp_path / f"{index}.png", image)
    save_model(model, tmp_path / "prior.safetensors")
    for given in (tmp_path, str(tmp_path), [tmp_path / f"{index}.png" for index in range(3)]):
        assert np.array_equal(Normalizer.fit(given, model=tmp_path / "prior.safetensors").code, fitted.code)


def test_a_fit_leaves_the_model_alone_and_is_left_alone_by_it(images: list[Pixels], model: BottleGAN) -> None:
    mine = copy.deepcopy(model)
    normalizer = Normalizer.fit(images[0], model=mine, force=True)
    assert mine.codes.names == []
    assert [p.requires_grad for p in mine.parameters()] == [p.requires_grad for p in model.parameters()]
    batch = to_batch(images[1])
    before = normalizer(batch)
    for parameter in mine.parameters():
        parameter.data.zero_()
    assert torch.equal(normalizer(batch), before)


def test_progress_is_told_the_verdict(model: BottleGAN, tmp_path: Path) -> None:
    with EventLog(tmp_path / "log.jsonl") as log:
        Normalizer.fit(BLANK, model=model, progress=log)
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["verdict"] == "refused"


@pytest.mark.parametrize("direction", ["normalize", "restain"])
@pytest.mark.parametrize("kind", ["frozen", "instance", "unet"])
@pytest.mark.parametrize("keeps", [True, False])
def test_levels_are_mapped_as_by_the_network_itself(direction: str, kind: str, keeps: bool) -> None:
    """Within rounding by the kernel, which networks that look at other pixels must not take."""
    model = known(kind="unet") if kind == "unet" else known(statistics=kind)
    normalizer = Normalizer.from_model(model, "b") if keeps else Normalizer.all_of(model)[1]
    call = normalizer if direction == "normalize" else normalizer.restain
    for image in (noise(24, 33), noise(16, 32, seed=1), noise(24, 33)[::2]):
        assert apart(call(image), directly(model, model.codes["b"], image, direction)) <= (kind == "frozen")


def test_floats_and_levels_agree_to_half_a_level(fitted: Normalizer, images: list[Pixels]) -> None:
    batch = torch.cat([to_batch(image) for image in images])
    for call in (fitted, fitted.restain):
        mapped = call(batch)
        assert mapped.dtype == torch.float32
        assert mapped.shape == batch.shape
        for ours, image in zip(mapped, images, strict=True):
            levels = torch.from_numpy(call(image)).permute(2, 0, 1)
            assert (255 * ours - levels.float()).abs().max() <= 0.51
            off = (to_levels(ours).int() - levels.int()).abs()
            assert off.max() <= 1
            assert (off > 0).float().mean() < 1e-3


def test_a_batch_is_its_images(fitted: Normalizer, images: list[Pixels]) -> None:
    batch = torch.cat([to_batch(image) for image in images])
    for call in (fitted, fitted.restain, fitted.uncertainty):
        torch.testing.assert_close(call(batch), torch.cat([call(image[None]) for image in batch]), rtol=0, atol=1e-5)


def test_a_tile_maps_to_the_same_bytes_alone_and_in_an_image(fitted: Normalizer, images: list[Pixels]) -> None:
    fresh = Normalizer(fitted.model, fitted.code)
    whole, tile = fitted(images[0]), np.s_[17:50, 3:40]
    assert np.array_equal(fresh(images[0][tile]), whole[tile])
    batch = to_batch(images[0])
    torch.testing.assert_close(fitted(batch[:, :, *tile]), fitted(batch)[:, :, *tile], rtol=0, atol=1e-5)


def test_no_gradient_passes_and_other_precisions_come_back(fitted: Normalizer) -> None:
    batch = torch.rand(1, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    mapped = fitted(batch)
    assert not mapped.requires_grad
    assert not mapped.is_inference()  # else nothing could be trained on it
    assert mapped.dtype == torch.float64
    torch.testing.assert_close(mapped.float(), fitted(batch.float()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fitted(batch), mapped)


def test_each_device_has_a_network_of_its_own(fitted: Normalizer) -> None:
    tensors = fitted.on_tensors()
    for name in ("meta", "cpu"):
        network = tensors._on(torch.device(name))
        assert {parameter.device.type for parameter in network.parameters()} == {name}


def test_threads_of_torch_do_not_matter_to_levels(fitted: Normalizer, model: BottleGAN, images: list[Pixels]) -> None:
    batch = to_batch(images[1])
    torch.set_num_threads(2)
    try:
        other = Normalizer.fit(images, model=model, force=True)
        mapped, floats = other(images[1]), other(batch)
    finally:
        torch.set_num_threads(1)
    assert np.array_equal(other.code, fitted.code)
    assert np.array_equal(mapped, fitted(images[1]))
    torch.testing.assert_close(floats, fitted(batch), rtol=0, atol=1e-6)


def test_threads_may_share_a_normalizer(fitted: Normalizer, images: list[Pixels]) -> None:
    fresh = Normalizer(fitted.model, fitted.code)
    with ThreadPoolExecutor(3) as threads:
        mapped = list(threads.map(fresh, images * 2))
    assert all(np.array_equal(ours, fitted(image)) for ours, image in zip(mapped, images * 2, strict=True))


def test_a_worker_process_can_have_it(fitted: Normalizer, images: list[Pixels]) -> None:
    expected = fitted(images[0])
    for other in (ForkingPickler.loads(ForkingPickler.dumps(fitted)), copy.deepcopy(fitted)):
        assert np.array_equal(other(images[0]), expected)


def test_a_refused_style_leaves_images_as_they_are_unless_forced(model: BottleGAN, images: list[Pixels]) -> None:
    refused = Normalizer.fit(BLANK, model=model)
    assert refused.diagnosis is not None
    assert refused.diagnosis.verdict == Verdict.REFUSED
    batch = to_batch(images[0])
    for call in (refused, refused.restain):
        assert np.array_equal(call(images[0]), images[0])
        assert call(images[0]) is not images[0]
        assert torch.equal(call(batch), batch)
        assert call(batch).data_ptr() != batch.data_ptr()
    forced = Normalizer.fit(BLANK, model=model, force=True)
    forced.everything = True  # what is found on blank glass takes tissue for pen
    assert apart(forced(images[0]), directly(model, forced.code, images[0])) <= 1
    assert not np.array_equal(forced(images[0]), images[0])


def test_a_file_gives_back_the_same_normalizer(
    fitted: Normalizer, model: BottleGAN, images: list[Pixels], tmp_path: Path
) -> None:
    save_model(model, tmp_path / "prior.safetensors", {"steps": 7, "verdict": "stale"}, REFERENCE)
    saved = Normalizer.fit(images, model=tmp_path / "prior.safetensors", name="lab-7", force=True)
    saved.save(tmp_path / "lab.safetensors")
    loaded = Normalizer.load(tmp_path / "lab.safetensors")
    assert np.array_equal(loaded(images[1]), fitted(images[1]))
    assert np.array_equal(loaded.restain(images[1]), fitted.restain(images[1]))
    assert np.array_equal(loaded.uncertainty(images[1]), fitted.uncertainty(images[1]))
    assert (loaded.name, loaded.diagnosis, loaded.forced) == ("lab-7", fitted.diagnosis, True)
    said = read_document(tmp_path / "lab.safetensors")
    assert said.styles == ("lab-7",)
    assert said.reference == REFERENCE
    assert said.record["steps"] == 7
    assert said.record["verdict"] != "stale"
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "lab.safetensors").read_bytes()


@pytest.mark.parametrize("force", [False, True])
def test_a_file_remembers_what_was_refused_and_what_forced(model: BottleGAN, force: bool, tmp_path: Path) -> None:
    normalizer = Normalizer.fit(BLANK, model=model, force=force)
    assert normalizer.diagnosis is not None
    normalizer.diagnosis = replace(normalizer.diagnosis, expected_error=float("inf"))
    normalizer.save(tmp_path / "n.safetensors")
    loaded = Normalizer.load(tmp_path / "n.safetensors")
    assert (loaded.diagnosis, loaded.forced, loaded.refused) == (normalizer.diagnosis, force, not force)
    assert np.array_equal(loaded(noise(5, 5)), normalizer(noise(5, 5)))


def test_a_model_with_several_styles_needs_the_name_of_one(tmp_path: Path) -> None:
    model, path = known(), tmp_path / "m.safetensors"
    model.save(path)
    with pytest.raises(InputError, match=r"has 2 styles.*style=NAME: a, b"):
        Normalizer.load(path)
    with pytest.raises(InputError, match="no style called c; known are: a, b"):
        Normalizer.load(path, style="c")
    loaded = Normalizer.load(path, style="b")
    assert loaded.diagnosis is None
    assert np.array_equal(loaded(noise(4, 4)), Normalizer.from_model(model, "b")(noise(4, 4)))
    loaded.save(path)
    assert Normalizer.load(path).name == "b"
    model.codes = StyleCodes([], 3, torch.Generator())
    model.save(path)
    with pytest.raises(InputError, match=r"has 0 styles.*Normalizer\.fit"):
        Normalizer.load(path)


def test_the_diagnosis_of_one_style_is_not_taken_for_anothers(fitted: Normalizer, tmp_path: Path) -> None:
    path = tmp_path / "n.safetensors"
    fitted.save(path)
    model = BottleGAN.load(path)
    model.codes.add("other", torch.zeros(24))
    save_model(model, path, read_document(path).record)
    assert Normalizer.load(path, style="other").diagnosis is None
    assert Normalizer.load(path, style="lab").diagnosis == fitted.diagnosis


@pytest.mark.parametrize("change", [{"verdict": "splendid"}, {"gain": "steep"}, {FIGURES[0]: None}, {"reason": None}])
def test_a_diagnosis_that_makes_no_sense_is_refused(
    change: dict[str, str | None], fitted: Normalizer, tmp_path: Path
) -> None:
    path = tmp_path / "n.safetensors"
    fitted.save(path)
    changed = {**read_document(path).record, **change}
    save_model(BottleGAN.load(path), path, {key: value for key, value in changed.items() if value is not None})
    with pytest.raises(ModelFileError, match="diagnosis cannot be read"):
        Normalizer.load(path)


def test_a_truncated_or_missing_file_is_told(fitted: Normalizer, tmp_path: Path) -> None:
    path = tmp_path / "n.safetensors"
    with pytest.raises(MissingError, match="no such model file"):
        Normalizer.load(path)
    fitted.save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match="cut off"):
        Normalizer.load(path)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 4), np.uint8), r"shape \(4, 4\)"),
        (np.zeros((4, 4, 4), np.uint8), "without alpha"),
        (np.zeros((3, 4, 4), np.uint8), "channels last"),
        (np.zeros((0, 4, 3), np.uint8), "not empty"),
        ("image.png", "got a str"),
        (torch.zeros(1, 3, 4, 4, dtype=torch.uint8), r"torch\.uint8.*/ 255"),
        (torch.zeros(1, 4, 4, 3), r"batch \(N, 3, height, width\)"),
        (torch.full((1, 3, 4, 4), 255.0), "got 255 to 255"),
        (torch.full((1, 3, 4, 4), -0.5), "got -0.5"),
        (torch.full((1, 3, 4, 4), float("nan")), "got nan"),
    ],
)
def test_what_is_no_image_is_refused_with_a_remedy(image: Any, message: str) -> None:
    normalizer = Normalizer.from_model(known(), "a")
    for call in (normalizer, normalizer.restain, normalizer.uncertainty):
        with pytest.raises(InputError, match=message) as error:
            call(image)
        assert ";" in str(error.value)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "no image to fit"),
        (7, "got a int"),
        (np.zeros((4, 4), np.uint8), r"shape \(4, 4\)"),
        (torch.zeros(1, 3, 4, 4), "got a Tensor"),
        ([BLANK, None], "got a NoneType"),
        ("nowhere.png", "no such file"),
    ],
)
def test_what_cannot_be_fitted_to_is_refused(images: Any, message: str, model: BottleGAN) -> None:
    with pytest.raises(InputError, match=message):
        Normalizer.fit(images, model=model)


def test_levels_are_mapped_without_the_network_of_torch(
    fitted: Normalizer, images: list[Pixels], monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = Normalizer(fitted.model, fitted.code)
    monkeypatch.setattr(Normalizer, "on_tensors", lambda _: pytest.fail("the network was asked"))
    for ours, theirs in ((fresh, fitted), (fresh.restain, fitted.restain), (fresh.uncertainty, fitted.uncertainty)):
        assert np.array_equal(ours(images[0]), theirs(images[0]))


def test_images_come_back_as_they_were_given(plain_prior: BottleGAN) -> None:
    levels = np.random.default_rng(0).integers(60, 250, (40, 30, 3), dtype=np.uint8)
    normalizer = Normalizer.fit(levels, model=plain_prior)
    mapped = normalizer(levels)
    picture = normalizer(Image.fromarray(levels))
    assert isinstance(picture, Image.Image)
    assert np.array_equal(np.asarray(picture), mapped)
    for kind in (np.float32, np.float64):
        floats = normalizer((levels / 255).astype(kind))
        assert floats.dtype == kind
        assert np.abs(255 * floats - mapped).max() <= 1
    with pytest.raises(InputError, match="divide by 255"):
        Normalizer.fit(levels.astype(np.float32), model=plain_prior)
    with pytest.raises(InputError, match="grayscale"):
        normalizer(Image.fromarray(levels[..., 0]))


def test_pictures_and_floats_are_fitted_as_levels_are(plain_prior: BottleGAN) -> None:
    levels = np.random.default_rng(0).integers(60, 250, (40, 30, 3), dtype=np.uint8)
    codes = [Normalizer.fit(each, model=plain_prior).code for each in (levels, Image.fromarray(levels), levels / 255)]
    assert np.array_equal(codes[0], codes[1])
    assert np.array_equal(codes[0], codes[2])
