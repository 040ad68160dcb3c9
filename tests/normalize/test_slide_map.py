import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bottlegan.normalize.slide_map import MapChoice, fit_map, load_map

from bottlegan.errors import InputError
from bottlegan.imaging.files import Levels, write_image
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.files import save_model
from bottlegan.models.paradigms import BottleGAN, build_model
from bottlegan.normalize import slide_map
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.seeding import numpy_stream
from bottlegan.stain.simulate import render
from bottlegan.stain.style import LABS, REFERENCE, draw_style

GREEN, BLUE = np.array([[20, 120, 60]], np.uint8), np.array([[30, 60, 170]], np.uint8)
STYLE = draw_style(numpy_stream(5, "spare", 0), "lab", LABS)  # in which hematoxylin is as blue as ink


@pytest.fixture(scope="module")
def prior(plain_prior: BottleGAN, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prior") / "plain.safetensors"
    save_model(plain_prior, path)
    return path


@pytest.fixture(scope="module")
def lab(content: torch.Tensor, prior: Path) -> Normalizer:
    return Normalizer.fit(from_batch(render(content[:2], STYLE)), model=prior)


@pytest.fixture(scope="module")
def model(lab: Normalizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows one style, and its reference set."""
    path = tmp_path_factory.mktemp("model") / "lab.safetensors"
    lab.save(path)
    return path


@pytest.fixture
def image(content: torch.Tensor, tmp_path: Path) -> Path:
    write_image(tmp_path / "tissue.png", from_batch(render(content[:1], STYLE))[0])
    return tmp_path / "tissue.png"


def same(left: Levels, right: Levels) -> bool:
    return bool((left == right).all())


def test_ink_is_told_by_the_stain_that_colors_come_from(model: Path, lab: Normalizer, content: torch.Tensor) -> None:
    there, back = load_map(MapChoice(model), "lab", "normalize"), load_map(MapChoice(model), "lab", "restain")
    assert same(there.colors(GREEN), GREEN)
    assert same(back.colors(GREEN), GREEN)
    assert same(back.colors(BLUE), BLUE)
    assert not same(there.colors(BLUE), BLUE)  # it is hematoxylin there
    for color_map, run, style in ((there, lab, STYLE), (back, lab.restain, REFERENCE)):
        tissue = from_batch(render(content[2:3], style))[0].reshape(-1, 3)
        assert same(color_map.colors(tissue), run(tissue[None])[0])


def test_everything_is_mapped_as_by_the_normalizer_if_asked_for(model: Path, lab: Normalizer) -> None:
    for direction, run in (("normalize", lab), ("restain", lab.restain)):
        color_map = load_map(MapChoice(model, everything=True), "lab", direction)  # type: ignore[arg-type]
        assert same(color_map.colors(GREEN), run(GREEN[None])[0])
    both = MapChoice(model, "lab", "lab", everything=True).prepare()(Path("none"))
    assert same(both.colors(GREEN), lab.restain(lab(GREEN[None]))[0])
    assert not same(both.colors(GREEN), GREEN)


def test_a_known_style_needs_no_slide_and_one_table_serves_all(model: Path, lab: Normalizer) -> None:
    make = MapChoice(model, "lab").prepare()
    assert make(Path("gone")) is make(Path("gone too"))
    assert make(Path("gone")).note["direction"] == "normalize"
    assert MapChoice(model, "lab", direction="restain").prepare()(Path("gone")).note["direction"] == "restain"
    make = MapChoice(model, "lab", "lab").prepare()
    both = make(Path("gone"))
    assert both is make(Path("gone too"))
    assert both.note["then"] == load_map(MapChoice(model), "lab", "restain").note
    colors = np.array([[200, 120, 170], [120, 70, 150]], np.uint8)
    assert same(both.colors(colors), lab.restain(lab(colors[None]))[0])


def test_a_fitted_style_goes_on_to_another(model: Path, prior: Path, image: Path) -> None:
    fitted = fit_map(image, MapChoice(prior))
    made = MapChoice(model, to="lab").prepare()(image)
    assert made.note["style"] == "fitted to this slide"
    assert made.note["then"] == load_map(MapChoice(model), "lab", "restain").note
    assert same(fitted.colors(GREEN), GREEN)
    everything = fit_map(image, MapChoice(prior, everything=True))
    assert not same(everything.colors(GREEN), GREEN)


def test_the_note_tells_model_seed_and_verdict(image: Path, prior: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[object] = []
    read = slide_map.read_images

    def read_noted(given: Path, seed: int) -> list[Levels]:
        seeds.append(seed)
        return read(given, seed)

    monkeypatch.setattr(slide_map, "read_images", read_noted)
    note = fit_map(image, MapChoice(prior, seed=3)).note
    assert seeds == [3]
    assert (note["seed"], note["forced"], note["verdict"]) == (3, False, "good")
    assert note["model sha256"] == hashlib.sha256(prior.read_bytes()).hexdigest()


@pytest.mark.parametrize("form", [{"statistics": "instance"}, {"kind": "unet", "statistics": "frozen"}])
def test_a_model_that_looks_around_a_pixel_is_refused(image: Path, tmp_path: Path, form: dict[str, Any]) -> None:
    config = ModelConfig(code_size=3, generator=GeneratorConfig(width=4, depth=1, mapping=3, **form))
    path = tmp_path / "model.safetensors"
    save_model(build_model(config, ("a",), torch.Generator().manual_seed(0)), path)
    with pytest.raises(InputError, match="would not fit together"):
        load_map(MapChoice(path), "a", "normalize")
    with pytest.raises(InputError, match="would not fit together"):
        fit_map(image, MapChoice(path))
