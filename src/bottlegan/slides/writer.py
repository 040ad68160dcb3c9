"""Pyramids of JPEG tiles: flat BigTIFF, which OpenSlide reads, OME-TIFF, or a folder of DICOM files.

Maps of classes or probabilities are lossless pyramids, because JPEG would invent classes at every edge.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args
from xml.sax.saxutils import escape

import numpy as np
from PIL import Image

from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.files import check_writable, replacing
from bottlegan.core.progress import Json
from bottlegan.imaging.files import Pixels
from bottlegan.slides.bigtiff import BigTiff, Page, PixelKind
from bottlegan.slides.dicom import check_folder, convert_to_dicom
from bottlegan.slides.grid import Grid, Region, Size, halve_sizes

Format = Literal["tiff", "ome", "dicom"]
FORMATS: tuple[Format, ...] = get_args(Format)
SUFFIXES = (".tif", ".tiff")
QUALITY = 90
"""JPEG changes colors more than anything else here: at quality 80 with halved chroma, the usual setting, by 5.3 levels
on average; at 90 with full chroma by 2.9; at 95 by 1.9. Stain is color, so chroma is never halved. A slide at 90 is
about as large as the scanner's own."""
SUBSAMPLING, CHROMA = "444", (1, 1)
WHITE = 255


@dataclass(frozen=True)
class Form:
    """The form of a pyramid."""

    size: Size
    tile: Size
    mpp: tuple[float, float] | None = None
    quality: int = QUALITY
    kind: Format = "tiff"
    pixels: PixelKind = "color"
    palette: tuple[tuple[int, int, int], ...] = ()
    """For classes: the color of each of 256 ids."""

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        if not 1 <= self.quality <= 100:
            raise InputError(f"a JPEG's quality must be from 1 to 100, got {self.quality}; 90 is the default")
        if self.kind == "dicom" and self.mpp is None:
            raise InputError("DICOM needs the size of a pixel, which the slide does not state; write a TIFF instead")


class PyramidWriter:
    """Takes the tiles of a pyramid in any order. `encode` may run in any thread, `add` in only one."""

    def __init__(self, form: Form, file: BigTiff, note: Mapping[str, Json]) -> None:
        """Lay out the levels.

        Args:
            form: The form of the pyramid.
            file: The file to write.
            note: Content of the file's description. More can be added to `self.note`.
        """
        self.note = dict(note)
        self._form, self._file, self._colored = form, file, form.pixels == "color"
        self._encode = _import_simplejpeg().encode_jpeg if self._colored else None
        self._halve = _choose_halving(form.pixels)
        sizes = halve_sizes(form.size, form.tile)
        self.grids = [Grid(Region(level, 0, 0, *size), form.tile) for level, size in enumerate(sizes)]
        self._pages = [
            Page(grid, _scale(form, grid), subsampling=CHROMA, pixels=form.pixels, palette=form.palette)
            for grid in self.grids
        ]
        samples = 3 if self._colored else 1
        self._white = self._compress(np.full((form.tile.height, form.tile.width, samples), WHITE, np.uint8))
        self._white_offset: int | None = None

    def encode(self, levels: Pixels) -> bytes:
        """Return the compressed bytes of a tile (H, W, C), which the slide's edge may cut; no bytes if it is white."""
        # Most of a slide is glass, and its tiles are stored only once.
        return b"" if levels[0, 0, 0] == WHITE and levels.min() == WHITE else self._compress(levels)

    def _compress(self, levels: Pixels) -> bytes:
        tile, (height, width) = self._form.tile, levels.shape[:2]
        if (width, height) != tile:
            # Padded by repetition, because black padding would ring into the last visible pixels.
            levels = np.pad(levels, ((0, tile.height - height), (0, tile.width - width), (0, 0)), mode="edge")
        if self._encode is None:
            return zlib.compress(np.ascontiguousarray(levels).tobytes())
        data: bytes = self._encode(np.ascontiguousarray(levels), self._form.quality, "RGB", SUBSAMPLING)
        return data

    def halve(self, levels: Pixels) -> Pixels:
        """Return a tile (H, W, C) at half the size, rounded up: means of colors and grays, every other class id."""
        return self._halve(levels)

    def add(self, level: int, index: int, data: bytes) -> None:
        """Write a tile that `encode` returned."""
        page = self._pages[level]
        if data:
            self._file.add(page, index, data)
        elif self._white_offset is None:
            self._white_offset = self._file.add(page, index, self._white)
        else:
            self._file.link(page, index, self._white_offset, len(self._white))

    def finish(self) -> None:
        """Write the pages, which make the file a TIFF."""
        self._pages[0].description = describe(self._form, self.note)
        self._file.finish(self._pages, nested=self._form.kind == "ome")


@contextmanager
def writing_pyramid(path: Path, form: Form, note: Mapping[str, Json]) -> Iterator[PyramidWriter]:
    """Yield a writer of the pyramid `path`. The file appears only if the block succeeds, and is then complete."""
    check_target(path, form.kind)
    with _replacing_dicom(path) if form.kind == "dicom" else replacing(path) as temporary:
        file = BigTiff(temporary, path)
        try:
            writer = PyramidWriter(form, file, note)
            yield writer
            writer.finish()
        finally:
            file.close()


@contextmanager
def _replacing_dicom(folder: Path) -> Iterator[Path]:
    """Yield a temporary path for a flat TIFF. It becomes a folder of DICOM files if the block succeeds."""
    try:
        beside = TemporaryDirectory(prefix=".", dir=folder.parent)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); choose another place") from None
    with beside:
        pyramid = Path(beside.name) / "pyramid.tiff"
        yield pyramid
        convert_to_dicom(pyramid, folder)


def check_target(path: Path, kind: Format) -> None:
    """Refuse a name that no pyramid can have, before any work is done."""
    if kind == "dicom":
        check_folder(path)
        return
    if path.suffix.lower() not in SUFFIXES:
        ending = " or ".join(SUFFIXES)
        raise InputError(f"{path}: slides are written as TIFF; end the name in {ending}, or add --format dicom")
    check_writable(path)


def choose_format(path: Path) -> Format:
    """Return the format for a name: `.ome.tif` and `.ome.tiff` mean OME-TIFF."""
    return "ome" if path.stem.lower().endswith(".ome") else "tiff"


def describe(form: Form, note: Mapping[str, Json]) -> str:
    """Return the description of the finest level: JSON, or OME's XML around it.

    Both are plain ASCII, as TIFF requires.
    """
    text = json.dumps(dict(note), sort_keys=True, allow_nan=False)
    if form.kind != "ome":
        return text
    (width, height), physical = form.size, ""
    if form.mpp is not None:
        x, y = form.mpp
        physical = f' PhysicalSizeX="{x:.6g}" PhysicalSizeY="{y:.6g}"'  # in micrometers, unless a unit is named
    space = "http://www.openmicroscopy.org/Schemas/OME/2016-06"
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><OME xmlns="{space}" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
        f' xsi:schemaLocation="{space} {space}/ome.xsd"><Image ID="Image:0"><Description>{escape(text)}</Description>'
        f'<Pixels ID="Pixels:0" DimensionOrder="XYCZT" Type="uint8" SizeX="{width}" SizeY="{height}" SizeZ="1"'
        f' SizeC="3" SizeT="1" Interleaved="true"{physical}><Channel ID="Channel:0:0" SamplesPerPixel="3"/>'
        '<TiffData IFD="0" PlaneCount="1"/></Pixels></Image></OME>'
    )


def _choose_halving(pixels: PixelKind) -> Callable[[Pixels], Pixels]:
    if pixels == "classes":
        return lambda levels: levels[::2, ::2]
    if pixels == "gray":
        return lambda levels: np.asarray(Image.fromarray(levels[..., 0]).reduce(2))[..., None]
    from bottlegan.slides.halving import halve  # noqa: PLC0415 - its compiler takes time to import

    return lambda levels: halve(np.ascontiguousarray(levels))


def _scale(form: Form, grid: Grid) -> tuple[float, float] | None:
    """Return the micrometers per pixel of a level."""
    if form.mpp is None:
        return None
    x, y = form.mpp
    return x * form.size.width / grid.region.width, y * form.size.height / grid.region.height


def _import_simplejpeg() -> Any:
    try:
        import simplejpeg  # noqa: PLC0415 - optional, so only asked for when there is a slide
    except ImportError:
        raise MissingError("writing slides needs simplejpeg: pip install 'bottlegan[slides]'") from None
    return simplejpeg
