"""The drawing tools of procedural tissue: smooth noise, fibers, outlines and nuclei, as pure functions of a generator.

Lengths are pixels, positions are (row, column), angles are radians from the column axis toward the row axis.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import ndimage

Field = NDArray[np.float32]
Mask = NDArray[np.bool_]
Labels = NDArray[np.int32]
Scalar = TypeVar("Scalar", bound=np.generic)

DIRECTIONS = 180
"""Number of directions in which an outline gives its radius."""


@dataclass(frozen=True)
class Shapes:
    """N closed outlines, drawn by `rasterize`."""

    center: Field
    """(N, 2) positions."""
    radius: Field
    """(N,) mean radii."""
    aspect: Field
    """(N,) ratios of length to width, at least 1."""
    angle: Field
    """(N,) directions of the long axis."""
    outline: Field
    """(N, DIRECTIONS) radius in each direction, relative to the mean."""
    gap: Field
    """(N,) widths of the seam where it would touch another."""

    def __len__(self) -> int:
        """Return N."""
        return len(self.radius)


@dataclass(frozen=True)
class Nuclei:
    """N nuclei, drawn by `stamp`."""

    center: Field
    """(N, 2) positions."""
    length: Field
    """(N,) long semi-axes."""
    width: Field
    """(N,) short semi-axes."""
    angle: Field
    """(N,) directions of the long axis."""
    hematoxylin: Field
    """(N,) concentrations at the rim."""
    pale: Field
    """(N,) in [0, 1]: the share of it that the middle lacks, where chromatin is open."""


def noise(rng: Generator, size: int, scale: float) -> Field:
    """Return smooth Gaussian noise of shape (size, size), zero mean and unit variance, with features of `scale`."""
    count = int(np.ceil(size / scale)) + 4
    position = np.arange(size, dtype=np.float32) / scale + np.float32(1 + rng.random())
    reach = np.abs(position[:, None] - np.arange(count, dtype=np.float32))
    # The cubic B-spline. Rows of unit length give every pixel the same variance wherever it falls on the grid.
    outer, inner = np.maximum(2 - reach, 0), np.maximum(1 - reach, 0)
    spline = outer * outer * outer - 4 * inner * inner * inner
    spline /= np.linalg.norm(spline, axis=1, keepdims=True)
    return np.asarray(spline @ rng.standard_normal((count, count), np.float32) @ spline.T, np.float32)


def smear(field: Field, angle: Field, steps: tuple[float, ...]) -> Field:
    """Return `field` averaged along the lines of `angle` and scaled to zero mean and unit variance: fibers.

    Each step averages three samples at that distance, so doubling steps reach far along a line in few passes.
    """
    size = field.shape[0]
    row, column = np.indices(field.shape, np.float32)
    down, right = np.sin(angle), np.cos(angle)

    def sample(distance: float) -> Field:
        rows = np.clip(row + distance * down + 0.5, 0, size - 1).astype(np.int32)
        columns = np.clip(column + distance * right + 0.5, 0, size - 1).astype(np.int32)
        return field.ravel()[rows * size + columns]

    for step in steps:
        field = field + sample(step) + sample(-step)
    return np.asarray((field - field.mean()) / field.std(), np.float32)


def points(rng: Generator, size: int, spacing: float, jitter: float = 0.35) -> Field:
    """Return (N, 2) positions on a jittered hexagonal grid that covers the patch and a margin of one spacing."""
    rows = np.arange(-spacing, size + spacing, spacing * 0.87)
    columns = np.arange(-spacing, size + spacing, spacing)
    grid = np.stack(np.meshgrid(rows, columns, indexing="ij"), -1)
    grid[::2, :, 1] += spacing / 2
    grid += rng.uniform(-jitter, jitter, grid.shape) * spacing + rng.uniform(-0.5, 0.5, 2) * spacing
    return grid.reshape(-1, 2).astype(np.float32)


def at(field: NDArray[Scalar], position: Field) -> NDArray[Scalar]:
    """Return the values of `field` at (N, 2) positions, taking the nearest pixel."""
    rows, columns = np.clip(position.round().astype(np.int32), 0, field.shape[0] - 1).T
    return field[rows, columns]


def outlines(rng: Generator, count: int, wobble: float, folds: int, fold_depth: float) -> Field:
    """Return (count, DIRECTIONS) relative radii: round shapes that wobble and have up to `folds` narrow infoldings."""
    theta = np.linspace(0, 2 * np.pi, DIRECTIONS, endpoint=False)
    order = np.arange(2, 8)[:, None]
    amplitude = wobble * rng.standard_normal((count, len(order))) / order[:, 0]
    phase = rng.uniform(0, 2 * np.pi, (count, len(order)))
    radius = 1 + np.einsum("nk,nkt->nt", amplitude, np.cos(order * theta + phase[:, :, None]))
    for _ in range(folds):
        away = np.abs((theta - rng.uniform(0, 2 * np.pi, (count, 1)) + np.pi) % (2 * np.pi) - np.pi)
        depth = fold_depth * rng.uniform(0, 1, (count, 1))
        radius *= 1 - depth * np.exp(-((away / rng.uniform(0.09, 0.18, (count, 1))) ** 2))
    return np.maximum(radius, 0.15).astype(np.float32)


def rasterize(shapes: Shapes, size: int, warp: tuple[Field, Field]) -> Labels:
    """Return (size, size) labels: 1 + the index of the shape that holds a pixel, or 0 where none does.

    `warp` shifts rows and columns, which makes all outlines irregular.
    """
    best, second = np.full((2, size, size), -1e9, np.float32)
    label = np.zeros((size, size), np.int32)
    theta = np.linspace(-np.pi, np.pi, DIRECTIONS + 1)
    axis = np.arange(size, dtype=np.float32)
    margin = 1 + max(np.abs(shift).max() for shift in warp)
    for index in range(len(shapes)):
        radius, stretch = shapes.radius[index], np.sqrt(shapes.aspect[index])
        reach = radius * stretch * shapes.outline[index].max() + margin
        low = np.clip(shapes.center[index] - reach, 0, size).astype(int)
        high = np.clip(shapes.center[index] + reach, 0, size).astype(int)
        window = (slice(low[0], high[0]), slice(low[1], high[1]))
        row = axis[window[0], None] - shapes.center[index, 0] + warp[0][window]
        column = axis[window[1]] - shapes.center[index, 1] + warp[1][window]
        cosine, sine = np.cos(shapes.angle[index]), np.sin(shapes.angle[index])
        along, across = (column * cosine + row * sine) / stretch, (row * cosine - column * sine) * stretch
        edge = np.interp(np.arctan2(across, along), theta, np.append(shapes.outline[index], shapes.outline[index, 0]))
        inside = (radius * edge - np.hypot(along, across)).astype(np.float32)
        wins = inside > best[window]
        second[window] = np.maximum(second[window], np.minimum(inside, best[window]))
        best[window] = np.where(wins, inside, best[window])
        label[window] = np.where(wins, index + 1, label[window])
    return np.where((best > 0) & (best - second > np.append(0, shapes.gap)[label]), label, 0).astype(np.int32)


def stamp(nuclei: Nuclei, size: int) -> tuple[Field, Field]:
    """Return the opacity in [0, 1] and the hematoxylin of drawn nuclei, each of shape (size, size)."""
    opacity, hematoxylin = np.zeros((2, size * size), np.float32)
    reach = int(np.ceil(nuclei.length.max(initial=1))) + 1
    offset = np.arange(-reach, reach + 1, dtype=np.int32)
    # In batches, because each nucleus needs a whole window of scratch memory.
    for start in range(0, len(nuclei.center), 2048):
        center, length, width, angle, rim, pale = (
            getattr(nuclei, name)[start : start + 2048, ..., None, None] for name in Nuclei.__annotations__
        )
        rows = np.floor(center[:, 0]).astype(np.int32) + offset[:, None]
        columns = np.floor(center[:, 1]).astype(np.int32) + offset
        down, right = (rows - center[:, 0]).astype(np.float32), (columns - center[:, 1]).astype(np.float32)
        cosine, sine = np.cos(angle), np.sin(angle)
        away = np.hypot((right * cosine + down * sine) / length, (down * cosine - right * sine) / width)
        # One pixel of soft edge, as a pixel that the outline crosses shows it.
        cover = np.clip(0.5 + (1 - away) * width, 0, 1)
        hit = (cover > 0) & (rows >= 0) & (rows < size) & (columns >= 0) & (columns < size)
        pixel = (rows * size + columns)[hit]
        np.maximum.at(opacity, pixel, cover[hit])
        np.maximum.at(hematoxylin, pixel, (rim * (1 - pale * np.clip(1 - away, 0, 1)))[hit])
    return opacity.reshape(size, size), hematoxylin.reshape(size, size)


def direction(field: Field) -> tuple[Field, Field]:
    """Return the unit gradient of `field` in rows and columns, smoothed over a few pixels."""
    down, right = np.gradient(ndimage.gaussian_filter(field, 3))
    norm = np.hypot(down, right) + 1e-6
    return down / norm, right / norm
