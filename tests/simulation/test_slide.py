import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bottlegan.core.errors import InputError, MissingError
from bottlegan.imaging.files import Pixels
from bottlegan.simulation.lab_folder import draw_lab
from bottlegan.simulation.slide import (
    CHART,
    LARGEST,
    PERIOD,
    SIDE,
    SMALLEST,
    Scene,
    choose_patch,
    draw_layers,
    draw_scene,
    draw_tile,
    find_cover,
    write_slide,
)
from bottlegan.simulation.slide_kernels import DICE, FADE, MARGIN, PITCH, cover, develop
from bottlegan.simulation.styles import render
from bottlegan.slides.grid import Grid, Region, Size
from bottlegan.slides.reader import open_slide
from bottlegan.slides.tissue import sample_tissue
from bottlegan.stain.style import REFERENCE, WIDE, Style, draw_style

openslide = pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
pytest.importorskip("simplejpeg", reason="needs pip install 'bottlegan[slides]'")

SIZE = 3000


@pytest.fixture(scope="module")
def scene() -> Scene:
    return draw_scene(SIZE, 0, REFERENCE)


@pytest.fixture(scope="module")
def slide(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A slide, written by one thread."""
    path = tmp_path_factory.mktemp("slide") / "slide.tiff"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("bottlegan.simulation.slide.draw_scene", lambda *_: scene)
        write_slide(path, SIZE, 0, REFERENCE, threads=1, note={"software": "a test"})
    return path


def without_noise(layers: np.ndarray, scene: Scene) -> Pixels:
    dice = np.zeros((*layers.shape[:2], DICE), np.uint8)
    return develop(
        layers, scene.densities, scene.curve, dice, np.stack([np.ones(256), np.zeros(256)]).astype(np.float32)
    )


def test_the_same_seed_gives_the_same_bytes_from_any_number_of_threads(slide: Path, tmp_path: Path) -> None:
    write_slide(tmp_path / "again.tiff", SIZE, 0, REFERENCE, threads=2, note={"software": "a test"})
    assert (tmp_path / "again.tiff").read_bytes() == slide.read_bytes()


def test_another_seed_gives_other_tissue_and_another_style(scene: Scene) -> None:
    other = draw_scene(SIZE, 1, REFERENCE)
    assert ((other.tissue > 0) != (scene.tissue > 0)).mean() > 0.1
    assert not np.array_equal(other.patches, scene.patches)
    assert draw_lab(0).hematoxylin != draw_lab(1).hematoxylin


def test_openslide_reads_what_was_drawn(slide: Path, scene: Scene) -> None:
    with openslide.OpenSlide(slide) as file:
        assert file.level_dimensions == ((3000, 3000), (1500, 1500), (750, 750), (375, 375), (188, 188))
        assert file.properties["openslide.mpp-x"] == file.properties["openslide.mpp-y"] == "0.5"
        note = json.loads(file.properties["tiff.ImageDescription"])
        assert note["source"].startswith("synthetic")
        assert (note["software"], note["seed"], note["style"]["name"]) == ("a test", 0, REFERENCE.name)
        for tile in (Region(0, 1024, 1280, 256, 256), Region(0, 2816, 0, 184, 256)):
            read = np.asarray(file.read_region((tile.x, tile.y), 0, (tile.width, tile.height)).convert("RGB"))
            assert np.abs(read.astype(float) - draw_tile(scene, tile)).mean() < 6


@example(704, 399, 12, 300, 1, 0)  # on a border of patches, where shares were not quite the same
@settings(max_examples=25)
@given(
    st.integers(0, SIZE - 300),
    st.integers(0, SIZE - 300),
    st.integers(1, 300),
    st.integers(1, 300),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_a_part_alone_is_as_in_the_whole(
    scene: Scene, x: int, y: int, width: int, height: int, left: int, top: int
) -> None:
    part = Region(0, x, y, width, height)
    whole = Region(0, x - left, y - top, width + left + 30, height + top + 20)
    assert np.array_equal(draw_layers(scene, whole)[part.within(whole)], draw_layers(scene, part))


def test_tiles_do_not_depend_on_what_was_drawn_before(scene: Scene) -> None:
    grid = Grid(Region(0, 0, 0, SIZE, SIZE), Size(256, 256))
    alone = draw_tile(scene, grid[65])
    found: dict[int, Pixels] = {}
    work = [threading.Thread(target=lambda i=i: found.update({i: draw_tile(scene, grid[i])})) for i in (66, 65, 64)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert np.array_equal(found[65], alone)
    assert not np.array_equal(found[64], alone)


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.floats(0, 4), st.floats(0, 4))
def test_fast_colors_are_the_slow_ones(seed: int, most_hematoxylin: float, most_eosin: float) -> None:
    rng = np.random.default_rng(seed)
    style = draw_style(rng, "any", WIDE)
    assert style.offset != (0, 0)
    concentration = rng.random((8, 8, 2)) * [most_hematoxylin, most_eosin]
    layers = np.concatenate([concentration, np.zeros((8, 8, 1))], axis=2).astype(np.float32)
    truth = 255 * render(torch.from_numpy(layers[..., :2].copy()).permute(2, 0, 1)[None].double(), style)
    fast = without_noise(layers, optics(style))
    assert np.abs(fast - truth[0].permute(1, 2, 0).numpy()).max() < 0.75


def optics(style: Style) -> Scene:
    """A scene of a style, without the tissue, which takes long to draw."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("draw_pieces", "draw_pen", "draw_patches"):
            patched.setattr(f"bottlegan.simulation.slide.{name}", lambda *_: np.zeros((1, 1), np.float32))
        patched.setattr("bottlegan.simulation.slide.noise", lambda *_: np.zeros((1, 1), np.float32))
        patched.setattr("bottlegan.simulation.slide.ripple", lambda *_: np.zeros((1, 1), np.float32))
        return draw_scene(SIZE, 0, style)


def test_a_tile_of_tissue_is_its_layers_and_noise(scene: Scene) -> None:
    tile = middle(scene)
    noisy, clean = draw_tile(scene, tile).astype(float), without_noise(draw_layers(scene, tile), scene).astype(float)
    assert 0.8 < (noisy - clean).std() < 2
    assert abs((noisy - clean).mean()) < 0.1


def middle(scene: Scene) -> Region:
    """A tile of tissue, far from its edge."""
    row, column = np.unravel_index(scene.tissue.argmax(), scene.tissue.shape)
    return Region(0, int(column * SIZE / CHART) - 128, int(row * SIZE / CHART) - 128, 256, 256)


@pytest.mark.parametrize("seed", range(6))
def test_half_of_a_slide_is_tissue_and_its_border_is_glass(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("bottlegan.simulation.slide.draw_patches", lambda *_: np.zeros((1, 2), np.float32))
        scene = draw_scene(SIZE, seed, REFERENCE)
    assert 0.4 < (scene.tissue > 0).mean() < 0.55
    border = np.concatenate([scene.tissue[[0, -1]].ravel(), scene.tissue[:, [0, -1]].ravel()])
    assert (border > 0).mean() < 0.02
    assert 0.001 < (scene.pen > 0).mean() < 0.05


def test_glass_is_nearly_white_and_noisy(scene: Scene) -> None:
    style = draw_lab(3)
    glass = draw_tile(
        replace(scene, densities=optics(style).densities, curve=optics(style).curve), Region(0, 0, 0, 64, 64)
    )
    assert np.abs(glass.mean((0, 1)) - 255 * np.array(style.white)).max() < 1.5
    assert 0.5 < glass.std((0, 1)).max() < 3
    assert len(np.unique(glass.reshape(-1, 3), axis=0)) > 50


def test_no_two_tiles_have_the_same_noise(scene: Scene) -> None:
    bare = [draw_tile(scene, Region(0, x, 0, 64, 64)) for x in (0, SIZE - 64)]
    assert min(tile.min() for tile in bare) > 240
    assert not np.array_equal(*bare)


def test_the_edge_of_tissue_is_soft(scene: Scene) -> None:
    shares = np.concatenate(
        [
            each.ravel()
            for y in range(0, SIZE, 512)
            if (each := find_cover(scene, scene.tissue, 10, Region(0, 0, y, SIZE, 64))) is not None
        ]
    )
    assert 0.01 < ((shares > 0) & (shares < 1)).mean() < 0.2


def test_the_compiled_cover_is_linear_between_cells() -> None:
    chart = np.random.default_rng(0).normal(0, 2, (16, 16)).astype(np.float32)
    flat, output = np.zeros((4, 4), np.float32), np.empty((60, 50), np.float32)
    cover(output, chart, flat, 5.0, 1.0, 8.0, 7, 11)
    axis = np.arange(16)
    rows, columns = (np.arange(7, 67) + 0.5) / 5 - 0.5, (np.arange(11, 61) + 0.5) / 5 - 0.5
    along = np.stack([np.interp(columns, axis, line) for line in chart])
    truth = np.stack([np.interp(rows, axis, line) for line in along.T], axis=1)
    assert np.allclose(output, np.clip(5 * truth / 8, 0, 1), atol=1e-5)


@settings(max_examples=60)
@given(st.integers(0, LARGEST), st.integers(0, LARGEST))
def test_the_fast_wall_of_patches_is_the_slow_one(scene: Scene, y: int, x: int) -> None:
    full = replace(scene, size=LARGEST, tissue=np.full((CHART, CHART), CHART, np.float32))
    layers = draw_layers(full, Region(0, x, y, 1, 1))
    assert layers[0, 0, :2] == pytest.approx(lay_slowly(full, y, x), rel=1e-2, abs=1e-3)


def lay_slowly(scene: Scene, y: int, x: int) -> np.ndarray:
    """The stains of a pixel: what all cells around it show, each by how near it is."""
    bend = scene.bend[:, y % PERIOD, x % PERIOD].astype(float)
    total, seen = np.zeros(2), 0.0
    for i in range(y // PITCH - 2, y // PITCH + 3):
        for j in range(x // PITCH - 2, x // PITCH + 4):
            corner = np.array([i * PITCH, j * PITCH - i % 2 * PITCH // 2])
            inside = np.array([y, x]) + bend - corner
            share = np.clip(0.5 + 0.5 * np.minimum(inside, PITCH - inside) / FADE, 0, 1).prod()
            if share > 0:
                down, right = np.array([y, x]) - corner + MARGIN
                assert 0 <= min(down, right) <= max(down, right) < SIDE
                first, below, beside = choose_patch(scene, i, j)
                total += share * scene.patches[first + down * below + right * beside]
                seen += share
    assert seen == pytest.approx(1)
    return total


def test_borders_bend_by_less_than_the_margin(scene: Scene) -> None:
    assert np.abs(scene.bend).max() <= MARGIN - FADE
    assert np.abs(scene.bend).std() > 30


def test_tissue_is_found_on_it(slide: Path) -> None:
    with open_slide(slide) as opened:
        tiles = sample_tissue(opened, count=8)
    assert len(tiles) == 8
    assert np.mean([tile.mean() for tile in tiles]) < 200


@pytest.mark.parametrize("size", [-1, 0, SMALLEST - 1, LARGEST + 1])
def test_sizes_that_cannot_be_drawn(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bottlegan.simulation.slide.draw_scene", lambda *_: pytest.fail("was drawn"))
    with pytest.raises(InputError, match=f"{size} pixels a side cannot be drawn; ask for 256 to 200000"):
        write_slide(tmp_path / "slide.tiff", size, 0, REFERENCE)
    assert not list(tmp_path.iterdir())


def test_the_smallest_slide_has_both_tissue_and_glass(scene: Scene) -> None:
    levels = draw_tile(replace(scene, size=SMALLEST), Region(0, 0, 0, SMALLEST, SMALLEST))
    pale = levels.min(axis=2) > 215
    assert 0.3 < pale.mean() < 0.8


def test_the_farthest_tile_of_the_largest_slide_is_drawn_alone(scene: Scene) -> None:
    huge = replace(scene, size=LARGEST)
    assert draw_tile(huge, Region(0, LARGEST - 64, LARGEST - 64, 64, 64)).min() > 200
    row, column = np.unravel_index(scene.tissue.argmax(), scene.tissue.shape)
    place = Region(0, int(column * LARGEST / CHART), int(row * LARGEST / CHART), 256, 256)
    assert draw_tile(huge, place).mean() < 230


def test_what_cannot_be_written_is_refused_before_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bottlegan.simulation.slide.draw_scene", lambda *_: pytest.fail("was drawn"))
    with pytest.raises(MissingError, match="no such folder"):
        write_slide(tmp_path / "nowhere" / "slide.tiff", SIZE, 0, REFERENCE)
    with pytest.raises(InputError, match="slides are written as TIFF"):
        write_slide(tmp_path / "slide.png", SIZE, 0, REFERENCE)
    with pytest.raises(InputError, match="from 1 to 100"):
        write_slide(tmp_path / "slide.tiff", SIZE, 0, REFERENCE, quality=0)
    assert not list(tmp_path.iterdir())
