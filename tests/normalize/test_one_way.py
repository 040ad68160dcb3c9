"""Every interface maps the same color to the same bytes, those of the kernel."""

import copy
import hashlib
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from bottlegan.cli.main import app
from bottlegan.colormap.keys import count_colors
from bottlegan.federated.client.staining import Styles, restain_randomly
from bottlegan.imaging.files import Pixels, read_image, write_image
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.document import PRIOR
from bottlegan.models.files import save_model, to_weights
from bottlegan.models.freeze import Direction, make_map
from bottlegan.models.paradigms import PARADIGMS, BottleGAN, StyleModel, build_model
from bottlegan.models.reference_stain import ReferenceStain
from bottlegan.normalize import adapters
from bottlegan.normalize.choice import MapChoice
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.normalize.slides.one import SlideOptions, lay_grid, map_tile
from bottlegan.normalize.transforms import Normalize, RandomRestain, Restain
from bottlegan.simulation.styles import render, stain_densities
from bottlegan.slides.reader import open_slide
from bottlegan.stain.style import LABORATORIES, REFERENCE

NAMES = ("a", "b")
DIRECTIONS: tuple[Direction, ...] = ("normalize", "restain")
GREEN = (20, 120, 60)


def build(paradigm: str = "many-one-many") -> StyleModel:
    """A model with weights as after training, which knows two styles and its reference set."""
    config = ModelConfig(paradigm=paradigm, code_size=3, generator=GeneratorConfig(width=8, depth=2, mapping=4))  # type: ignore[arg-type]
    random = torch.Generator().manual_seed(0)
    built = build_model(config, NAMES, random)
    for name, parameter in built.named_parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=1.0 if name == "codes.table" else 0.06, generator=random)
    built.reference = ReferenceStain.of(stain_densities(REFERENCE))
    return built.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def model() -> BottleGAN:
    built = build()
    assert isinstance(built, BottleGAN)
    return built


@pytest.fixture(scope="module")
def file(model: BottleGAN, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    save_model(model, path)
    return path


@pytest.fixture(scope="module")
def image(content: Tensor) -> Pixels:
    """Tissue with a stroke of a pen, and colors of all kinds."""
    levels = from_batch(render(content[:1], LABORATORIES[5]))[0].copy()
    levels[20:28, 10:150] = GREEN
    levels[100:140, 100:] = np.random.default_rng(0).integers(0, 256, (40, levels.shape[1] - 100, 3), np.uint8)
    return levels


@pytest.fixture(scope="module")
def expected(model: BottleGAN, image: Pixels) -> dict[Direction, Pixels]:
    """Map the image with the kernel, pixel by pixel and without a table."""
    weights = to_weights(model)
    maps = {way: make_map(weights, weights.code("b"), way, remembers=False) for way in DIRECTIONS}
    return {way: color_map(image) for way, color_map in maps.items()}


def run(*words: object) -> None:
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_there_is_something_to_agree_on(image: Pixels, expected: dict[Direction, Pixels]) -> None:
    pen = (image == GREEN).all(2)
    for mapped in expected.values():
        assert np.array_equal(mapped[pen], image[pen])
        assert (mapped != image)[~pen].mean() > 0.5
    assert not np.array_equal(expected["normalize"], expected["restain"])


def test_a_normalizer_however_it_was_come_by(
    model: BottleGAN, file: Path, image: Pixels, expected: dict[Direction, Pixels]
) -> None:
    loaded = Normalizer.load(file, "b")
    for each in (
        loaded,
        Normalizer.from_model(model, "b"),
        Normalizer.from_model(file, "b"),
        Normalizer.all_of(model)[1],
        copy.deepcopy(loaded),
        ForkingPickler.loads(ForkingPickler.dumps(loaded)),
    ):
        for _ in range(2):  # new colors, and remembered ones
            assert np.array_equal(each(image), expected["normalize"])
            assert np.array_equal(each.restain(image), expected["restain"])


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_images_and_folders_of_the_command_line(
    direction: Direction, file: Path, image: Pixels, expected: dict[Direction, Pixels], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    write_image(tmp_path / "in" / "a.png", image)
    write_image(tmp_path / "in" / "b.png", image[40:90, 7:120])
    words = ("--model", file, "--style", "b")
    run(direction, tmp_path / "in" / "a.png", tmp_path / "one.tif", *words)
    run(direction, tmp_path / "in", tmp_path / "out", *words)
    for path in (tmp_path / "one.tif", tmp_path / "out" / "a.png"):
        assert np.array_equal(read_image(path), expected[direction])
    assert np.array_equal(read_image(tmp_path / "out" / "b.png"), expected[direction][40:90, 7:120])


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_tiles_of_a_slide_before_they_are_compressed(
    direction: Direction, file: Path, image: Pixels, expected: dict[Direction, Pixels], tmp_path: Path
) -> None:
    tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
    pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
    path = tmp_path / "slide.tiff"
    form = {"tile": (64, 64), "photometric": "rgb", "metadata": None, "compression": "zlib"}
    with tifffile.TiffWriter(path) as written:
        written.write(image, **form)
        written.write(image[::2, ::2], subfiletype=1, **form)
    color_map = MapChoice(file, "b", direction=direction).prepare()(path)
    for options in (SlideOptions(), SlideOptions(strict=True), SlideOptions(region="33,20,101,111")):
        with open_slide(path) as slide:
            grid = lay_grid(slide, options)
            assert len(grid) > 1
            for place in range(len(grid)):
                part = grid[place]
                tile = map_tile(slide, part, color_map, options, [])
                assert np.array_equal(
                    tile, expected[direction][part.y : part.y + part.height, part.x :][:, : part.width]
                )


def test_what_is_fitted_maps_a_slide_as_it_maps_an_image(content: Tensor, tmp_path: Path) -> None:
    levels = from_batch(render(content[:1], LABORATORIES[5]))[0]
    write_image(tmp_path / "a.png", levels)
    with open_slide(tmp_path / "a.png") as slide:
        color_map, fitted = MapChoice(PRIOR).prepare()(slide), Normalizer.fit(slide)
        tile = map_tile(slide, lay_grid(slide, SlideOptions())[0], color_map, SlideOptions(), [])
    assert np.array_equal(tile, fitted(levels)[: tile.shape[0], : tile.shape[1]])


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_digest_of_all_colors(direction: Direction, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = 2**19  # all would take half a minute
    monkeypatch.setattr("bottlegan.colormap.table.COLORS", some)
    colors = count_colors(0, some).reshape(512, 1024, 3)
    normalizer = Normalizer.load(file, "b")
    mapped = (normalizer if direction == "normalize" else normalizer.restain)(colors)
    told = Normalizer.load(file, "b").color_map(direction).digest()
    assert told == hashlib.sha256(mapped.tobytes()).hexdigest()


def test_crops_of_phase_2(model: BottleGAN, image: Pixels) -> None:
    crops = np.stack([image[:96, :96], image[96:, 96:], image[:96, 96:], image[96:, :96]] * 4)
    weights = to_weights(model)
    maps = [make_map(weights, weights.code(name), "restain", remembers=False) for name in NAMES]
    varied = restain_randomly(Styles(to_weights(model)).restainers, 1.0)(crops, np.random.default_rng(0))
    drawn = np.random.default_rng(0)
    styles = [(drawn.random(), int(drawn.integers(2)))[1] for _ in crops]
    assert set(styles) == {0, 1}
    assert all(np.array_equal(crop, maps[k](given)) for crop, given, k in zip(varied, crops, styles, strict=True))


def test_levels_in_pipelines_of_monai(file: Path, image: Pixels, expected: dict[Direction, Pixels]) -> None:
    pytest.importorskip("monai", reason="MONAI is not installed; run `pip install monai`")
    normalizer = Normalizer.load(file, "b")
    given = {"image": np.ascontiguousarray(image.transpose(2, 0, 1))}
    for kind, way in (("NormalizeStaind", "normalize"), ("Restaind", "restain"), ("RandRestaind", "restain")):
        mapped = getattr(adapters, kind)("image", normalizer)(given)["image"]
        assert np.array_equal(mapped.transpose(1, 2, 0), expected[way])


def test_levels_in_pipelines_of_albumentations(file: Path, image: Pixels, expected: dict[Direction, Pixels]) -> None:
    pytest.importorskip("albumentations", reason="Albumentations is not installed; run `pip install albumentations`")
    normalizer = Normalizer.load(file, "b")
    for kind, way in (("NormalizeStain", "normalize"), ("Restain", "restain"), ("RandomRestain", "restain")):
        assert np.array_equal(getattr(adapters, kind)(normalizer)(image=image)["image"], expected[way])


def levels_apart(floats: Tensor, levels: Pixels) -> float:
    return float((255 * floats[0].permute(1, 2, 0) - torch.from_numpy(levels)).abs().max())


def test_floats_agree_to_a_level(file: Path, image: Pixels, expected: dict[Direction, Pixels]) -> None:
    normalizer, batch = Normalizer.load(file, "b"), to_batch(image)
    calls: list[tuple[Any, Direction]] = [
        (normalizer, "normalize"),
        (normalizer.restain, "restain"),
        (Normalize(normalizer), "normalize"),
        (Restain(normalizer), "restain"),
        (RandomRestain(normalizer), "restain"),
    ]
    for call, way in calls:
        assert levels_apart(call(batch), expected[way]) < 1


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("paradigm", sorted(PARADIGMS))
def test_floats_agree_to_a_level_in_every_paradigm(paradigm: str, everything: bool, image: Pixels) -> None:
    """Even if a color is partly pen, and if the network exceeds white."""
    normalizer, batch = Normalizer.from_model(build(paradigm), "b", everything=everything), to_batch(image)
    for call in (normalizer, normalizer.restain):
        assert levels_apart(call(batch), call(image)) < 1
        tile = np.s_[:, :, 13:77, 5:138]
        torch.testing.assert_close(call(batch[tile]), call(batch)[tile], rtol=0, atol=1e-5)


@pytest.mark.parametrize("paradigm", sorted(PARADIGMS))
def test_a_file_of_one_style_in_every_paradigm(paradigm: str, image: Pixels, tmp_path: Path) -> None:
    normalizer = Normalizer.from_model(build(paradigm), "b")
    normalizer.save(tmp_path / "b.safetensors")
    loaded = Normalizer.load(tmp_path / "b.safetensors")
    assert loaded.model.document.styles == ("b",)
    assert np.array_equal(loaded(image), normalizer(image))
    assert np.array_equal(loaded.restain(image), normalizer.restain(image))
    assert not np.array_equal(Normalizer.from_model(build(paradigm), "a").restain(image), normalizer.restain(image))
