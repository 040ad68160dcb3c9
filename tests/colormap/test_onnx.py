from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed: pip install 'bottlegan[export]'")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'bottlegan[export]'")

import onnx
from onnx.reference import ReferenceEvaluator

from bottlegan.colormap.keys import COLORS
from bottlegan.colormap.levels import DENSITY, EDGES, Floats, to_levels
from bottlegan.colormap.network import ColorNetwork, Ink
from bottlegan.colormap.onnx import STEPS, Difference, compare_onnx, make_onnx, open_onnx, tabulate_steps, write_onnx
from bottlegan.colormap.table import ColorMap
from bottlegan.imaging.files import Pixels


def draw_network(depth: int, width: int, ink: bool, seed: int = 0) -> ColorNetwork:
    """A map that changes every color a lot, but stays near colors."""
    random = np.random.default_rng(seed)

    def draw(*shape: int) -> Floats:
        return random.normal(0, 0.3, shape).astype(np.float32)

    matrix, bias = np.eye(3, dtype=np.float32) + draw(3, 3) / 3, draw(3) / 3
    found = Ink.of(np.array([0.02, 0.03, 0.04], np.float32), np.array([[1.2, 1.5, 0.8], [0.1, 0.9, 0.5]], np.float32))
    spared = found if ink else None
    if not depth:
        return ColorNetwork(matrix, bias, ink=spared)
    layers, shifts, last = draw(depth, max(width, 3), width), draw(depth, width), draw(width, 3)
    return ColorNetwork(matrix, bias, layers, shifts, last, spared)


def write(folder: Path, network: ColorNetwork) -> Path:
    path = folder / "map.onnx"
    write_onnx(path, make_onnx(network, {"style": "lab-3"}))
    return path


def noise(*shape: int) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)


@pytest.mark.parametrize("ink", [False, True])
@pytest.mark.parametrize(("depth", "width"), [(0, 0), (1, 2), (1, 8), (3, 16)])
def test_a_file_maps_as_the_kernel_does(tmp_path: Path, depth: int, width: int, ink: bool) -> None:
    network = draw_network(depth, width, ink)
    image, table = noise(1, 300, 500), ColorMap(network)
    apart = np.abs(np.subtract(open_onnx(write(tmp_path, network))(image), table(image), dtype=np.int16)).max(axis=-1)
    assert Difference(apart.size, np.count_nonzero(apart), int(apart.max())).tolerable
    assert (table(image) != image).mean() > 0.9 or ink


def test_ink_is_left_as_it_is(tmp_path: Path) -> None:
    run = open_onnx(write(tmp_path, draw_network(0, 0, True)))
    pen, tissue = np.array([[[[40, 200, 60]]]], np.uint8), np.array([[[[150, 90, 160]]]], np.uint8)
    assert np.array_equal(run(pen), pen)
    assert not np.array_equal(run(tissue), tissue)


@pytest.mark.parametrize("shape", [(2, 5, 7), (1, 1, 1), (3, 0, 4)])
def test_images_may_have_any_size(tmp_path: Path, shape: tuple[int, ...]) -> None:
    network = draw_network(0, 0, True)
    mapped = open_onnx(write(tmp_path, network))(noise(*shape))
    assert (mapped.shape, mapped.dtype) == ((*shape, 3), np.uint8)
    assert (np.abs(np.subtract(mapped, ColorMap(network)(noise(*shape)), dtype=np.int16)) <= 1).all()


def test_another_runtime_agrees() -> None:
    network = draw_network(1, 4, True)
    (mapped,) = ReferenceEvaluator(make_onnx(network)).run(None, {"image": noise(1, 50, 60)})
    assert np.abs(np.subtract(mapped, ColorMap(network)(noise(1, 50, 60)), dtype=np.int16)).max() <= 1


def test_what_is_beyond_numbers_becomes_what_the_kernel_makes_of_it(tmp_path: Path) -> None:
    huge = np.array([[3e38, 3e38, -3e38], [3e38, -3e38, -3e38], [0, 0, 0]], np.float32)
    network = ColorNetwork(huge, np.zeros(3, np.float32))
    image, table = noise(1, 40, 40), ColorMap(network)
    assert set(np.unique(table(image))) == {0, 255}
    assert np.array_equal(open_onnx(write(tmp_path, network))(image), table(image))


def test_every_step_of_density_holds_one_edge_at_most() -> None:
    edges, brightest = tabulate_steps()
    near = np.concatenate([EDGES, np.nextafter(EDGES, np.float32(9)), np.nextafter(EDGES, np.float32(0)), DENSITY])
    step = np.minimum(near * np.float32(STEPS / float(DENSITY[0])), np.float32(STEPS)).astype(np.int32)
    assert np.array_equal(brightest[step] - (near > edges[step]), to_levels(near))
    assert np.count_nonzero(np.isfinite(edges)) >= len(EDGES)
    assert (brightest[0], brightest[-1]) == (255, 0)


def test_a_file_says_what_it_is_and_has_the_same_bytes_again(tmp_path: Path) -> None:
    path = write(tmp_path, draw_network(1, 4, True))
    first = path.read_bytes()
    assert write(tmp_path, draw_network(1, 4, True)).read_bytes() == first
    model = onnx.load(path)
    assert {each.key: each.value for each in model.metadata_props} == {"style": "lab-3"}
    assert (model.ir_version, model.opset_import[0].version) == (8, 17)


def test_all_that_differs_is_counted(tmp_path: Path) -> None:
    network = ColorNetwork(np.eye(3, dtype=np.float32), np.zeros(3, np.float32))  # leaves colors as they are
    path = write(tmp_path, network)
    assert compare_onnx(path, ColorMap(network), colors=1000) == Difference(1000, 0, 0)

    def shift_blue(colors: Pixels) -> Pixels:
        wrong = colors.copy()
        wrong[colors[:, 2] < 10, 2] += 3
        return wrong

    assert compare_onnx(path, shift_blue, colors=512) == Difference(512, 20, 3)


@pytest.mark.parametrize(
    ("differ", "largest", "tolerable", "text"),
    [
        (0, 0, True, "all 16,777,216 colors match the kernel"),
        (100, 1, True, "100 of 16,777,216 colors (0.0006 %) differ from the kernel, by at most 1 level"),
        (1, 2, False, "1 of 16,777,216 colors (0.0000 %) differ from the kernel, by at most 2 levels"),
        (16778, 1, False, "16,778 of 16,777,216 colors (0.1000 %) differ from the kernel, by at most 1 level"),
    ],
)
def test_what_is_tolerable(differ: int, largest: int, tolerable: bool, text: str) -> None:
    difference = Difference(COLORS, differ, largest)
    assert (difference.tolerable, str(difference)) == (tolerable, text)
