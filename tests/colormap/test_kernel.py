"""The kernel against a reference in plain numpy, which does one operation at a time on all pixels."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bottlegan.colormap.levels import DENSITY, Floats, to_levels
from bottlegan.colormap.limits import FAINT, FAR, GREENNESS, NEAR
from bottlegan.colormap.network import ColorNetwork, Ink
from bottlegan.colormap.table import ColorMap
from bottlegan.imaging.files import Pixels

ZERO, ONE, TWO, THREE = np.float32(0), np.float32(1), np.float32(2), np.float32(3)
COLORS = arrays.arrays(np.uint8, st.tuples(st.integers(1, 40), st.just(3)))
DENSITIES = arrays.arrays(np.float32, st.tuples(st.integers(1, 40), st.just(3)), elements=st.floats(-1, 7, width=32))
DEPTHS = pytest.mark.parametrize("depth", [0, 1, 2])
SPARES = pytest.mark.parametrize("spares", [False, True], ids=["everything", "but ink"])


def ramp(value: Floats, low: np.float32, high: np.float32) -> Floats:
    share = np.minimum(np.maximum((value - low) / (high - low), ZERO), ONE)
    return share * share * (THREE - TWO * share)


def dot(left: tuple[Floats, ...], right: tuple[Floats, ...]) -> Floats:
    return left[0] * right[0] + left[1] * right[1] + left[2] * right[2]


def weigh(x: Floats, ink: Ink) -> Floats:
    """Return the degree (N,) to which densities (N, 3) are ink."""
    above = (x[:, 0] - ink.glass[0], x[:, 1] - ink.glass[1], x[:, 2] - ink.glass[2])
    strongest = np.maximum(np.maximum(above[0], above[1]), above[2])
    first, second = (dot(above, row) for row in ink.inverse)
    alone = (first < ZERO) | (second < ZERO)
    is_first = dot(above, ink.stains[0]) >= dot(above, ink.stains[1])
    first = np.where(alone, np.where(is_first, ONE, ZERO), first)
    second = np.where(alone, np.where(is_first, ZERO, ONE), second)
    nearest = tuple(first * ink.stains[0, j] + second * ink.stains[1, j] for j in range(3))
    length = np.sqrt(dot(above, above) * dot(nearest, nearest))
    cosine = dot(above, nearest) / np.where(length > ZERO, length, ONE)
    green = -above[1] / np.where(strongest > ZERO, strongest, ONE)
    share = ramp(strongest, *FAINT) * ramp(-cosine, -NEAR, -FAR) * ramp(green, -GREENNESS[0], -GREENNESS[1])
    return np.where((length > ZERO) & (strongest > FAINT[0]) & (above[1] < GREENNESS[0] * strongest), share, ZERO)


def reckon(network: ColorNetwork, x: Floats) -> Floats:
    """Return a network's output for densities (N, 3)."""
    y = network.bias + x[:, 0:1] * network.matrix[0] + x[:, 1:2] * network.matrix[1] + x[:, 2:3] * network.matrix[2]
    hidden = x
    for layer, shift in zip(network.layers, network.shifts, strict=True):
        after = np.tile(shift, (len(x), 1))
        for i in range(hidden.shape[1]):
            after = after + hidden[:, i : i + 1] * layer[i]
        hidden = np.maximum(after, ZERO)
    if len(network.shifts):
        for i in range(hidden.shape[1]):
            y = y + hidden[:, i : i + 1] * network.last[i]
    if network.ink is not None:
        share, color = weigh(x, network.ink)[:, None], np.minimum(np.maximum(y, ZERO), DENSITY[0])
        y = np.where(share > ZERO, color + share * (x - color), y)
    assert y.dtype == np.float32
    return y


@st.composite
def networks(draw: st.DrawFn, depth: int, *, spares: bool) -> ColorNetwork:
    """Return networks of any width, most of which map tissue to something like tissue."""
    width = draw(st.sampled_from([1, 2, 3, 4, 8, 17])) if depth else 0
    small, random = st.floats(-2, 2, width=32), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    matrix, bias = (draw(arrays.arrays(np.float32, shape, elements=small)) for shape in ((3, 3), 3))
    layers, shifts, last = (
        random.normal(0, 0.5, shape).astype(np.float32)
        for shape in ((depth, max(width, 3), width), (depth, width), (width, 3))
    )
    ink = None
    if spares:
        strong = random.uniform(0.05, 1.5, (2, 3)).astype(np.float32)
        ink = Ink.of(random.uniform(0, 0.3, 3).astype(np.float32), strong)
    return ColorNetwork(matrix, bias, layers, shifts, last, ink)


@DEPTHS
@SPARES
@settings(max_examples=50)
@given(st.data())
def test_every_bit_of_a_density_is_that_of_the_reference(depth: int, spares: bool, data: st.DataObject) -> None:
    network, densities = data.draw(networks(depth, spares=spares)), data.draw(DENSITIES)
    assert np.array_equal(ColorMap(network).map_densities(densities), reckon(network, densities))


@DEPTHS
@SPARES
@settings(max_examples=50)
@given(st.data())
def test_every_color_is_that_of_the_reference(depth: int, spares: bool, data: st.DataObject) -> None:
    network, colors = data.draw(networks(depth, spares=spares)), data.draw(COLORS)
    expected = to_levels(reckon(network, DENSITY[colors]))
    for remembers in (False, True):
        assert np.array_equal(ColorMap(network, remembers=remembers)(colors), expected)


@DEPTHS
@SPARES
@settings(max_examples=3)
@given(st.data())
def test_many_colors_are_those_of_the_reference(depth: int, spares: bool, data: st.DataObject) -> None:
    """More colors than examples have, so that rare branches of the kernel are covered, too."""
    network = data.draw(networks(depth, spares=spares))
    colors = np.random.default_rng(0).integers(0, 256, (30_000, 3), np.uint8)
    assert np.array_equal(ColorMap(network)(colors), to_levels(reckon(network, DENSITY[colors])))
    densities = DENSITY[colors]
    assert np.array_equal(ColorMap(network).map_densities(densities), reckon(network, densities))


def test_the_reference_sees_ink_tissue_and_what_is_between() -> None:
    """Otherwise, the tests above would prove little."""
    strong = np.array([[1.4, 1.9, 1.0], [0.05, 0.96, 0.62]], np.float32)
    ink = Ink.of(np.zeros(3, np.float32), strong)
    assert ink is not None
    colors = np.random.default_rng(0).integers(0, 256, (10_000, 3), np.uint8)
    share = weigh(DENSITY[colors], ink)
    for found in (share == 0, share == 1, (share > 0) & (share < 1)):
        assert found.mean() > 0.03


def test_an_identity_changes_nothing() -> None:
    identity = ColorMap(ColorNetwork(np.eye(3, dtype=np.float32), np.zeros(3, np.float32)))
    colors: Pixels = np.random.default_rng(0).integers(0, 256, (5000, 3), np.uint8)
    assert np.array_equal(identity(colors), colors)
    densities = np.random.default_rng(1).uniform(-9, 9, (500, 3)).astype(np.float32)
    assert np.array_equal(identity.map_densities(densities), densities)


def test_densities_are_taken_as_they_come() -> None:
    """As doubles, and as a strided view."""
    swap = ColorMap(ColorNetwork(np.eye(3, dtype=np.float32)[::-1].copy(), np.zeros(3, np.float32)))
    densities = np.random.default_rng(0).uniform(0, 5, (8, 6))
    mapped = swap.map_densities(densities[::2, ::2])
    assert mapped.dtype == np.float32
    assert np.array_equal(mapped, densities[::2, ::2][:, ::-1].astype(np.float32))
    assert swap.map_densities(np.empty((0, 3), np.float32)).shape == (0, 3)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("matrix", np.zeros((3, 4), np.float32)),
        ("matrix", np.zeros((3, 3))),
        ("matrix", np.zeros((3, 6), np.float32)[:, ::2]),
        ("bias", np.zeros(4, np.float32)),
        ("layers", np.zeros((1, 2, 2), np.float32)),  # of which the kernel would read a third row
        ("layers", np.zeros((2, 3, 2), np.float32)),
        ("last", np.zeros((3, 3), np.float32)),
        ("shifts", np.zeros((1, 2))),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name: str, array: Floats) -> None:
    shapes = {"matrix": (3, 3), "bias": (3,), "layers": (1, 3, 2), "shifts": (1, 2), "last": (2, 3)}
    good = {key: np.zeros(shape, np.float32) for key, shape in shapes.items()}
    ColorNetwork(**good)
    with pytest.raises(ValueError, match=f"^{name} must be .*got "):
        ColorNetwork(**(good | {name: array}))


def test_loaded_code_maps_like_compiled_code_and_does_not_wait_for_the_compiler(tmp_path: Path) -> None:
    program = """
import hashlib, sys
import numpy as np
from bottlegan.colormap.network import ColorNetwork
from bottlegan.colormap.table import ColorMap
random = np.random.default_rng(0)
shapes = (3, 3), 3, (1, 8, 8), (1, 8), (8, 3)
colors = random.integers(0, 256, (30_000, 3), np.uint8)
network = ColorNetwork(*(random.normal(0, 0.5, shape).astype(np.float32) for shape in shapes))
found = ColorMap(network), ColorMap(network, remembers=False)
densities = found[0].map_densities(random.uniform(0, 5, (1000, 3)))
print(hashlib.sha256(b"".join([*(each(colors).tobytes() for each in found), densities.tobytes()])).hexdigest())
print("numba.np.arraymath" in sys.modules)
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-c", program]
    said = [subprocess.run(words, check=True, env=environment, capture_output=True, text=True).stdout for _ in range(2)]
    (compiled, prepared), (loaded, still) = (each.split() for each in said)
    assert loaded == compiled
    assert (prepared, still) == ("True", "False")


def test_where_nothing_can_be_cached_the_kernel_is_compiled_each_time() -> None:
    """As in a read-only container without a home folder."""
    program = "from bottlegan.colormap import kernel; assert not kernel.CACHED"
    nowhere = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    nowhere["NUMBA_CACHE_LOCATOR_CLASSES"] = "UserProvidedCacheLocator"  # and none is provided
    subprocess.run([sys.executable, "-c", program], check=True, env=nowhere)
