import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bottlegan.core.errors import InputError
from bottlegan.core.seeding import numpy_stream
from bottlegan.data.lab import sample_slide
from bottlegan.imaging.files import Pixels, read_image, write_image
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.files import save_model
from bottlegan.models.paradigms import BottleGAN, build_model
from bottlegan.normalize import normalizer
from bottlegan.normalize.choice import ChosenMap, MapChoice, RefusedError, need_color_map
from bottlegan.normalize.normalizer import Direction, Normalizer
from bottlegan.simulation.styles import render
from bottlegan.slides.reader import open_slide
from bottlegan.stain.style import LABS, REFERENCE, draw_style

GREEN, BLUE = np.array([[[20, 120, 60]]], np.uint8), np.array([[[30, 60, 170]]], np.uint8)
STYLE = draw_style(numpy_stream(5, "spare", 0), "lab", LABS)  # here, hematoxylin is as blue as ink


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


def same(left: Pixels, right: Pixels) -> bool:
    return bool((left == right).all())


def sample_image(image: Path) -> list[Pixels]:
    with open_slide(image) as opened:
        return sample_slide(opened)


def load(model: Path, direction: Direction = "normalize", **options: Any) -> ChosenMap:
    """The map of the style that the model knows."""
    return MapChoice(model, "lab", direction=direction, **options).prepare()(Path("none"))


def fit(source: Path, model: Path, **options: Any) -> ChosenMap:
    return MapChoice(model, **options).prepare()(source)


def test_ink_is_told_by_the_stain_that_colors_come_from(model: Path, content: torch.Tensor) -> None:
    there, back = load(model), load(model, "restain")
    assert same(there.convert(GREEN), GREEN)
    assert same(back.convert(GREEN), GREEN)
    assert same(back.convert(BLUE), BLUE)
    assert not same(there.convert(BLUE), BLUE)  # it is hematoxylin there
    whole = Normalizer.load(model, everything=True)
    for color_map, run, style in ((there, whole, STYLE), (back, whole.restain, REFERENCE)):
        tissue = from_batch(render(content[2:3], style))[0]
        apart = np.subtract(color_map.convert(tissue), run(tissue), dtype=int)
        assert np.abs(apart).max() <= 1  # colors near glass may count as ink by a thousandth


@pytest.mark.parametrize("direction", ["normalize", "restain"])
def test_everything_is_mapped_if_asked_for(model: Path, direction: Direction) -> None:
    all_of_it = Normalizer.load(model, everything=True).color_map(direction)
    assert same(load(model, direction, everything=True).convert(GREEN), all_of_it(GREEN))
    assert not same(all_of_it(GREEN), GREEN)
    assert load(model, direction, everything=True).note["pen"] == "mapped"
    assert load(model, direction).note["pen"] == "left"


def test_on_the_way_to_another_style_pen_is_left_or_mapped_twice(model: Path) -> None:
    lab = Normalizer.load(model, everything=True)
    twice = load(model, to="lab", everything=True).convert(GREEN)
    assert same(twice, lab.restain(lab(GREEN)))
    assert not same(twice, GREEN)
    assert same(load(model, to="lab").convert(GREEN), GREEN)


def test_a_known_style_needs_no_slide_and_one_table_serves_all(model: Path, lab: Normalizer) -> None:
    make = MapChoice(model, "lab").prepare()
    assert make(Path("gone")) is make(Path("gone too"))
    assert make(Path("gone")).note["direction"] == "normalize"
    assert load(model, "restain").note["direction"] == "restain"
    make = MapChoice(model, "lab", "lab").prepare()
    both = make(Path("gone"))
    assert both is make(Path("gone too"))
    assert both.note["then"] == "lab"
    colors = np.array([[[200, 120, 170], [120, 70, 150]]], np.uint8)
    assert same(both.convert(colors), lab.restain(lab(colors)))


def test_a_fitted_style_goes_on_to_another(model: Path, prior: Path, image: Path, lab: Normalizer) -> None:
    fitted, made = fit(image, prior), fit(image, model, to="lab")
    assert made.note["style"] == "fitted to it"
    assert made.note["then"] == "lab"
    levels = read_image(image)
    assert same(made.convert(levels), lab.restain(Normalizer.fit(image, model=model)(levels)))
    assert same(fitted.convert(GREEN), GREEN)
    assert not same(fit(image, prior, everything=True).convert(GREEN), GREEN)


def test_the_note_tells_model_seed_and_verdict(image: Path, prior: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[object] = []
    read = normalizer.read_images

    def read_noted(given: Path, seed: int) -> list[Pixels]:
        seeds.append(seed)
        return read(given, seed)

    monkeypatch.setattr(normalizer, "read_images", read_noted)
    note = fit(image, prior, seed=3).note
    assert seeds == [3]
    assert (note["seed"], note["forced"], note["verdict"]) == (3, False, "good")
    assert note["model sha256"] == hashlib.sha256(prior.read_bytes()).hexdigest()


def test_a_path_and_an_open_slide_are_fitted_to_alike(image: Path, prior: Path) -> None:
    make = MapChoice(prior).prepare()
    with open_slide(image) as opened:
        from_slide = make(opened)
    tiles = Normalizer.fit(sample_image(image), model=prior)
    levels = read_image(image)
    assert same(from_slide.convert(levels), tiles(levels))
    assert same(make(image).convert(levels), Normalizer.fit(levels, model=prior)(levels))
    assert from_slide.note.keys() == make(image).note.keys()


def test_what_is_refused_has_no_map_unless_it_is_forced(prior: Path, tmp_path: Path) -> None:
    blank = tmp_path / "blank.png"
    write_image(blank, np.full((64, 64, 3), 240, np.uint8))
    message = r"blank\.png: refused: no tissue found.*; nothing was written; add --force to write it anyway"
    with pytest.raises(RefusedError, match=message):
        fit(blank, prior)
    assert fit(blank, prior, force=True).note["forced"] is True


@pytest.mark.parametrize("way", ["style", "to"])
def test_a_style_that_was_refused_when_it_was_fitted_has_none_either(way: str, prior: Path, tmp_path: Path) -> None:
    path = tmp_path / "blank.safetensors"
    for force in (False, True):
        Normalizer.fit(np.full((64, 64, 3), 240, np.uint8), model=prior, name="blank", force=force).save(path)
        choice = MapChoice(path, **{way: "blank"})
        if force:
            choice.prepare()
            continue
        with pytest.raises(RefusedError, match="the style blank is refused: no tissue found"):
            choice.prepare()


def test_a_style_that_is_not_known_is_told_at_once(model: Path) -> None:
    for choice in (MapChoice(model, "gone"), MapChoice(model, to="gone")):
        with pytest.raises(InputError, match="no style called gone; known are: lab"):
            choice.prepare()


@pytest.mark.parametrize("form", [{"statistics": "instance"}, {"kind": "unet", "statistics": "frozen"}])
def test_a_model_that_looks_around_a_pixel_is_for_images_only(tmp_path: Path, form: dict[str, Any]) -> None:
    config = ModelConfig(code_size=3, generator=GeneratorConfig(width=4, depth=1, mapping=3, **form))
    path = tmp_path / "model.safetensors"
    save_model(build_model(config, ("a",), torch.Generator().manual_seed(0)), path)
    with pytest.raises(InputError, match="would not match"):
        need_color_map(MapChoice(path, "a"))
    levels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    assert same(MapChoice(path, "a").prepare()(Path("none")).convert(levels), Normalizer.load(path)(levels))
