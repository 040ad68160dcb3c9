"""The figures of "How it works", drawn by the package from a seed whenever the site is built."""

import io
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from PIL import Image
from skimage.draw import disk
from torch import Tensor

from bottlegan import Normalizer
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES, REFERENCE, Style

SIZE = 224
GAP = 6
SHOWN = (1, 3, 5, 7)
"""Laboratories of the paper's nine that figures show."""


def draw_all() -> Iterator[tuple[str, bytes]]:
    """Yield the path and the content of each figure."""
    tissue = draw_tissue(seed=4, index=0, size=2 * SIZE).concentration[None]
    labs = [LABORATORIES[index] for index in SHOWN]
    images = [_stain(tissue, lab) for lab in labs]
    fits = [Normalizer.fit(image) for image in images]
    truth = _stain(tissue, REFERENCE)
    yield "images/how/labs.jpg", _write(_draw_labs(images, fits, truth))
    yield "images/how/mixes.png", _write(_draw_mixes(labs, fits), "PNG")
    yield "images/how/pen.jpg", _write(_draw_pen(images[0]))
    yield "images/how/style.svg", _draw_flow(_STYLE).encode()
    yield "images/how/federation.svg", _draw_flow(_FEDERATION).encode()


_STYLE = (
    ("images of a lab", "or tiles of its slide"),
    ("encoder", "how much of each stain?"),
    ("style code", "24 numbers, 96 bytes"),
    ("color map", "color in, color out"),
    ("table", "each color once"),
    ("every pixel", "looked up"),
)
_FEDERATION = (
    ("every lab", "fits its style code"),
    ("upload, once", "96 bytes a lab"),
    ("server", "one model of all styles"),
    ("rounds", "weights go out and back"),
    ("every lab", "trains in one stain"),
    ("one network", "for all labs"),
)


def _draw_labs(images: Sequence[Pixels], fits: Sequence[Normalizer], truth: Pixels) -> Pixels:
    """Return a column for each lab: as stained, normalized, the truth."""
    return _tile([list(images), [fit(image) for fit, image in zip(fits, images, strict=True)], [truth] * len(images)])


def _draw_mixes(labs: Sequence[Style], fits: Sequence[Normalizer]) -> Pixels:
    """Return mixes of both stains in each lab's style, and normalized: hematoxylin to the right, eosin downward."""
    steps = np.linspace(0, 1, 8, dtype=np.float32)
    mixes = torch.from_numpy(np.stack(np.meshgrid(0.8 * steps, steps))[None])
    columns = [(_stain(mixes, lab), fit) for lab, fit in zip(labs, fits, strict=True)]
    rows = [[image for image, _ in columns], [fit(image) for image, fit in columns]]
    return _tile([[_enlarge(image) for image in row] for row in rows])


def _draw_pen(image: Pixels) -> Pixels:
    """Return an image with green pen on it: as it is, normalized, and how uncertain each pixel's color is."""
    marked = image.copy()
    for step in range(40):
        rows, columns = disk((40 + 3 * step, 60 + 5 * step), 9, shape=marked.shape[:2])
        marked[rows, columns] = (40, 150, 80)
    fit = Normalizer.fit(image)
    doubt = np.clip(fit.uncertainty(marked) / 0.6, 0, 1)
    heat = np.stack([255 * doubt, 255 * doubt**2, 80 * (1 - doubt)], axis=-1).astype(np.uint8)
    return _tile([[marked, fit(marked), heat]])


def _stain(concentration: Tensor, style: Style) -> Pixels:
    return from_batch(render(concentration, style))[0]


def _enlarge(image: Pixels) -> Pixels:
    times = SIZE // len(image)
    return image.repeat(times, axis=0).repeat(times, axis=1)


def _tile(rows: Sequence[Sequence[Pixels]]) -> Pixels:
    """Return images as rows and columns, all cut to SIZE x SIZE, with white between them."""
    height, width = len(rows) * (SIZE + GAP) - GAP, len(rows[0]) * (SIZE + GAP) - GAP
    page = np.full((height, width, 3), 255, np.uint8)
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            top, left = i * (SIZE + GAP), j * (SIZE + GAP)
            page[top : top + SIZE, left : left + SIZE] = image[:SIZE, :SIZE]
    return page


def _write(image: Pixels, form: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, form, quality=92, subsampling=0)
    return buffer.getvalue()


def _draw_flow(steps: Sequence[tuple[str, str]]) -> str:
    """Return boxes in two rows, with arrows from each to the next, as SVG."""
    width, height, half = 190, 64, (len(steps) + 1) // 2
    parts = []
    for index, (title, text) in enumerate(steps):
        x, y = 10 + (index % half) * (width + 50), 10 + (index // half) * (height + 46)
        middle = x + width / 2
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="#f3e8f7" stroke="#7b3f98"/>'
            f'<text x="{middle}" y="{y + 27}" font-weight="bold">{title}</text>'
            f'<text x="{middle}" y="{y + 47}" font-size="13">{text}</text>'
        )
        if index % half < half - 1 and index < len(steps) - 1:
            parts.append(f'<path d="M{x + width + 6} {y + height / 2} h36" marker-end="url(#tip)"/>')
        elif index < len(steps) - 1:
            down, back = y + height + 23, 10 + width / 2
            parts.append(f'<path d="M{middle} {y + height + 6} V{down} H{back} v15" marker-end="url(#tip)"/>')
    total, rows = half * (width + 50) - 30, -(-len(steps) // half)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {rows * (height + 46) - 26}" '
        'font-family="sans-serif" font-size="15" text-anchor="middle" fill="#3a1d49">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#7b3f98"/></marker></defs>'
        f'<g stroke-width="1.5"><style>path{{stroke:#7b3f98;fill:none}}marker path{{fill:#7b3f98}}</style>'
        f"{''.join(parts)}</g></svg>"
    )
