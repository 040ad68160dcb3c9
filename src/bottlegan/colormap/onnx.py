"""A map of colors as an ONNX file, for software without this package, and its measured error.

The graph repeats the kernel's operations in the kernel's order: densities from a table, sums one product at a time,
levels by comparison, and no exponential. On a runtime that rounds each operation by itself, an affine map therefore
gives exactly the kernel's levels. Hidden layers are matrix products, which sum in another order, so a color on the edge
between two levels may come out as the other one.

Input `image` and output `mapped` are RGB levels (N, H, W, 3), uint8; N, H and W are free.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bottlegan.colormap.keys import COLORS, count_colors
from bottlegan.colormap.levels import DENSITY, EDGES, Floats, to_levels
from bottlegan.colormap.limits import FAINT, FAR, GREENNESS, NEAR
from bottlegan.colormap.network import ColorNetwork, Ink
from bottlegan.colormap.table import BLOCK, Convert
from bottlegan.core.errors import MissingError
from bottlegan.core.progress import Progress, Silent
from bottlegan.imaging.files import Pixels

try:
    import onnx
    import onnxruntime
    from onnx import TensorProto, checker, helper, numpy_helper
except ModuleNotFoundError as error:
    if error.name not in {"onnx", "onnxruntime"}:
        raise  # the package is installed, but something that it needs is not
    raise MissingError(f"{error.name} is not installed; pip install 'bottlegan[export]'") from None

OPSET, FORMAT = 17, 8
"""Versions of the operators and of the file; runtimes since 2022 read them."""
STEPS = 2048
"""Number of steps from white to black for looking up levels: so fine that no step holds two edges between levels."""
SLACK = 0.05
"""Share of a step that exceeds any shift of a density by rounding."""
MOST_OFF, MOST_SHARE = 1, 0.001
"""Most levels by which a file may differ from the kernel, and the largest share of colors that may differ."""

Name = str
"""Name of a value in the graph."""


@dataclass(frozen=True)
class Difference:
    """How a file differs from the kernel."""

    colors: int
    """Number of colors that were compared."""
    differ: int
    """Number of colors with a channel that differs."""
    largest: int
    """Largest difference of any channel, in levels."""

    @property
    def share(self) -> float:
        """Share of the colors that differ."""
        return self.differ / self.colors

    @property
    def tolerable(self) -> bool:
        """Whether the file may be used."""
        return self.largest <= MOST_OFF and self.share < MOST_SHARE

    def __str__(self) -> str:
        """Return the difference as a line of text."""
        if not self.differ:
            return f"all {self.colors:,} colors match the kernel"
        off = f"{self.differ:,} of {self.colors:,} colors ({100 * self.share:.4f} %)"
        return f"{off} differ from the kernel, by at most {self.largest} level{'' if self.largest == 1 else 's'}"


class Graph:
    """Nodes and constants of a graph under construction. Its values are planes of P pixels: (1, P) or (3, P)."""

    def __init__(self) -> None:
        """Start with an empty graph."""
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: Name, **attributes: Any) -> Name:
        """Add a node, and return the name of its output."""
        return self.add_many(operator, *inputs, count=1, **attributes)[0]

    def add_many(self, operator: str, *inputs: Name, count: int, **attributes: Any) -> list[Name]:
        """Add a node, and return the names of its outputs."""
        names = [f"{operator.lower()}_{len(self.nodes)}" + (f"_{i}" if i else "") for i in range(count)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names

    def hold(self, array: NDArray[Any] | np.generic) -> Name:
        """Add a constant, and return its name."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(np.shape(array)), name))
        return name

    def total(self, values: Iterable[Name]) -> Name:
        """Sum the values in their order."""
        return reduce(lambda left, right: self.add("Add", left, right), values)

    def weigh(self, values: Iterable[Name], weights: Floats) -> Name:
        """Sum the products of values and weights (n,) in their order."""
        return self.total(self.add("Mul", *pair) for pair in zip(values, map(self.hold, weights), strict=True))


def make_onnx(network: ColorNetwork, about: Mapping[str, str] | None = None) -> onnx.ModelProto:
    """Return a network as an ONNX model.

    Args:
        network: Maps densities.
        about: Metadata of the file, by key.
    """
    graph = Graph()
    flat = graph.add("Reshape", "image", graph.hold(np.array([-1, 3], np.int64)))
    planes = graph.add("Cast", graph.add("Transpose", flat, perm=[1, 0]), to=TensorProto.INT32)
    density = graph.add("Gather", graph.hold(DENSITY), planes)
    levels = add_levels(graph, add_network(graph, density, network))
    ends = [graph.add("Transpose", levels, perm=[1, 0]), graph.add("Shape", "image")]
    graph.nodes.append(helper.make_node("Reshape", ends, ["mapped"], allowzero=1))  # an image may be empty
    sides: list[str | int | None] = ["N", "H", "W", 3]
    image, mapped = (helper.make_tensor_value_info(name, TensorProto.UINT8, sides) for name in ("image", "mapped"))
    color_map = helper.make_graph(graph.nodes, "color_map", [image], [mapped], graph.constants)
    model = helper.make_model(
        color_map, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=FORMAT, producer_name="bottlegan"
    )
    helper.set_model_props(model, dict(about or {}))
    checker.check_model(model, full_check=True)
    return model


def add_network(graph: Graph, density: Name, network: ColorNetwork) -> Name:
    """Add the nodes that map densities (3, P), and return the mapped densities (3, P)."""
    channels = graph.add_many("Split", density, count=3, axis=0)
    products = (
        graph.add("Mul", channel, graph.hold(row[:, None]))
        for channel, row in zip(channels, network.matrix, strict=True)
    )
    mapped = graph.total([graph.hold(network.bias[:, None]), *products])
    if len(network.shifts):
        mapped = graph.add("Add", mapped, add_layers(graph, density, network))
    return mapped if network.ink is None else spare_ink(graph, density, channels, mapped, network.ink)


def add_layers(graph: Graph, density: Name, network: ColorNetwork) -> Name:
    """Add the hidden layers, and return their contribution to the mapped densities, (3, P)."""
    hidden, rows = density, 3
    for layer, shift in zip(network.layers, network.shifts, strict=True):
        weights, bias = graph.hold(layer[:rows].T), graph.hold(shift[:, None])
        hidden, rows = graph.add("Relu", graph.add("Gemm", weights, hidden, bias)), len(shift)
    return graph.add("MatMul", graph.hold(network.last.T), hidden)


def spare_ink(graph: Graph, density: Name, channels: list[Name], mapped: Name, ink: Ink) -> Name:
    """Add the nodes that leave ink unchanged, and return densities (3, P)."""
    share = weigh_ink(graph, channels, ink)
    # This blends two colors, so values beyond white or black are clipped first.
    color = graph.add("Clip", mapped, graph.hold(np.float32(0)), graph.hold(DENSITY[0]))
    return graph.add("Add", color, graph.add("Mul", share, graph.add("Sub", density, color)))


def weigh_ink(graph: Graph, channels: list[Name], ink: Ink) -> Name:
    """Add the nodes that recognize ink, and return how far pixels are ink, (1, P)."""
    zero, one = graph.hold(np.float32(0)), graph.hold(np.float32(1))
    above = [graph.add("Sub", channel, graph.hold(glass)) for channel, glass in zip(channels, ink.glass, strict=True)]
    strongest = graph.add("Max", *above)
    amounts = [graph.weigh(above, row) for row in ink.inverse]
    along = [graph.weigh(above, row) for row in ink.stains]
    lacks = graph.add("Or", *(graph.add("Less", amount, zero) for amount in amounts))
    first = graph.add("GreaterOrEqual", *along)
    # If the nearest mixture would hold a negative amount of one stain, it is the nearer stain alone.
    alone = [graph.add("Where", first, *pair) for pair in ((one, zero), (zero, one))]
    mix = [graph.add("Where", lacks, *pair) for pair in zip(alone, amounts, strict=True)]
    nearest = [graph.weigh(mix, column) for column in ink.stains.T]
    squares = (graph.total(multiply(graph, vector, vector)) for vector in (above, nearest))
    length = graph.add("Sqrt", graph.add("Mul", *squares))
    cosine = graph.add("Div", graph.total(multiply(graph, above, nearest)), length)
    share = graph.add("Mul", ramp(graph, strongest, *FAINT), ramp(graph, graph.add("Neg", cosine), -NEAR, -FAR))
    green = ramp(graph, graph.add("Div", graph.add("Neg", above[1]), strongest), -GREENNESS[0], -GREENNESS[1])
    share = graph.add("Mul", share, green)
    seen = graph.add("And", graph.add("Greater", strongest, graph.hold(FAINT[0])), graph.add("Greater", length, zero))
    return graph.add("Where", seen, share, zero)


def multiply(graph: Graph, left: Iterable[Name], right: Iterable[Name]) -> Iterator[Name]:
    """Multiply two sequences of values, element by element."""
    return (graph.add("Mul", *pair) for pair in zip(left, right, strict=True))


def ramp(graph: Graph, value: Name, low: np.float32, high: np.float32) -> Name:
    """Add a smooth ramp: 0 up to `low`, 1 from `high` on."""
    part = graph.add("Div", graph.add("Sub", value, graph.hold(low)), graph.hold(high - low))
    share = graph.add("Clip", part, graph.hold(np.float32(0)), graph.hold(np.float32(1)))
    rest = graph.add("Sub", graph.hold(np.float32(3)), graph.add("Mul", graph.hold(np.float32(2)), share))
    return graph.add("Mul", graph.add("Mul", share, share), rest)


def add_levels(graph: Graph, density: Name) -> Name:
    """Add the nodes that find the nearest levels of densities, uint8, by one table lookup and one comparison."""
    edges, brighter = tabulate_steps()
    darker = np.where(np.isfinite(edges), brighter - 1, brighter).astype(np.uint8)
    zero = graph.hold(np.float32(0))
    positive = graph.add("Where", graph.add("Greater", density, zero), density, zero)  # NaN becomes white
    scaled = graph.add("Mul", positive, graph.hold(np.float32(STEPS / float(DENSITY[0]))))
    step = graph.add("Cast", graph.add("Min", scaled, graph.hold(np.float32(STEPS))), to=TensorProto.INT32)
    edge, *levels = (graph.add("Gather", graph.hold(table), step) for table in (edges, darker, brighter))
    return graph.add("Where", graph.add("Greater", density, edge), *levels)


def tabulate_steps() -> tuple[Floats, Pixels]:
    """Return the edge between levels in each step of density (infinity if there is none) and the brightest level."""
    width = float(DENSITY[0]) / STEPS
    places = np.arange(STEPS + 1)
    brightest = to_levels(((places - SLACK) * width).astype(np.float32))
    darkest = to_levels(((places + 1 + SLACK) * width).astype(np.float32))
    crossed = brightest > darkest
    edges = np.where(crossed, EDGES[np.maximum(brightest, 1) - 1], np.float32(np.inf)).astype(np.float32)
    return edges, brightest


def write_onnx(path: Path, model: onnx.ModelProto) -> None:
    """Write a model to a file; the same model gives the same bytes."""
    path.write_bytes(model.SerializeToString(deterministic=True))


def compare_onnx(path: Path, exact: Convert, progress: Progress | None = None, colors: int = COLORS) -> Difference:
    """Run a file on the first `colors` colors, by default all, and return how it differs from the exact map."""
    run = open_onnx(path)
    differ = largest = 0
    starts = range(0, colors, BLOCK)
    for start in (progress or Silent()).track(starts, "comparing all colors", len(starts)):
        block = count_colors(start, min(start + BLOCK, colors))
        apart = np.abs(np.subtract(run(block[None, None])[0, 0], exact(block), dtype=np.int16)).max(axis=1)
        differ, largest = differ + int(np.count_nonzero(apart)), max(largest, int(apart.max()))
    return Difference(colors, differ, largest)


def open_onnx(path: Path) -> Convert:
    """Return a function that maps images (N, H, W, 3) with the file, using ONNX Runtime on the CPU."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # do not keep cores busy while waiting
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    return lambda levels: session.run(["mapped"], {"image": levels})[0]
