"""Images of real laboratories and scanners, for measuring and for inspection. Nothing that is shipped learns from them.

A folder of them holds:

- `index.csv` with the columns image, mask, lab and what: one row per image, with paths relative to the folder. The mask
  of an image is true on its nuclei; the entry is empty if nobody has marked them.
- `restained/locP_stainS.png`: place P of neighboring sections, stained with protocol S. Not pixel-aligned.
- `odd/`: images that are hard or not H&E.
- `slides/cmu-1-small-region.svs`: a slide of one level, small enough to be read whole.
"""

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bottlegan.core.errors import InputError, MissingError
from bottlegan.data.patches import list_patches, read_fitting_mask
from bottlegan.imaging.files import Pixels, read_image
from bottlegan.slides.grid import Region
from bottlegan.slides.reader import open_slide

COLUMNS = ("image", "mask", "lab", "what")
SLIDE = Path("slides", "cmu-1-small-region.svs")
LEFT_OUT = 0
"""The staining that is left out: darker than the others, and often shifted."""


@dataclass(frozen=True)
class RealImage:
    """One image of one lab."""

    name: str
    lab: str
    path: Path
    mask: Path | None
    shows: str
    """What it shows, in words."""

    def read(self) -> Pixels:
        """Return RGB levels (H, W, 3), uint8."""
        return read_image(self.path)

    def read_nuclei(self) -> NDArray[np.bool_]:
        """Return the mask of the nuclei, (H, W) bool."""
        if self.mask is None:
            raise MissingError(f"{self.path}: has no mask of its nuclei in index.csv; add one there, or skip the image")
        return read_fitting_mask(self.mask, self.read())


@dataclass(frozen=True)
class RealData:
    """The content of a folder of real images. Only labs are required; the rest may be empty."""

    root: Path
    labs: dict[str, tuple[RealImage, ...]]
    """The images of each lab."""
    restained: dict[int, dict[int, Path]]
    """Tiles by place and staining, without the staining that is left out. All places have the same stainings."""
    odd: tuple[Path, ...]
    slide: Path | None
    """A slide that is small enough to be read whole."""

    @property
    def images(self) -> list[RealImage]:
        """The images of all labs."""
        return [image for images in self.labs.values() for image in images]


def open_real_data(root: Path) -> RealData:
    """List the content of `root`. All files that `index.csv` names must exist."""
    index = root / "index.csv"
    if not index.is_file():
        raise MissingError(f"{index}: there is no such file; give the folder that holds index.csv, labs/ and masks/")
    labs: dict[str, list[RealImage]] = {}
    for image in read_index(index):
        images = labs.setdefault(image.lab, [])
        if image.name in {other.name for other in images}:
            raise InputError(f"{index}: lists two images of {image.lab} called {image.name}; remove one")
        images.append(image)
    if not labs:
        raise MissingError(f"{index}: lists no image; copy the data set again")
    odd = root / "odd"
    return RealData(
        root,
        {lab: tuple(images) for lab, images in labs.items()},
        list_restained(root / "restained"),
        tuple(patch.image for patch in list_patches(odd)) if odd.is_dir() else (),
        slide if (slide := root / SLIDE).is_file() else None,
    )


def read_index(index: Path) -> list[RealImage]:
    """Return the images that an index lists, in its order."""
    try:
        with index.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if tuple(rows.fieldnames or ()) != COLUMNS:
                columns = ", ".join(rows.fieldnames or ()) or "nothing"
                raise InputError(f"{index}: begins with {columns}, expected {', '.join(COLUMNS)}; copy it again")
            return [_read_row(index, rows.line_num, row) for row in rows]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{index}: is not a table of comma-separated text ({error}); copy it again") from None


def _read_row(index: Path, line: int, row: dict[str | None, str | None]) -> RealImage:
    image, mask, lab, shows = (row[column] for column in COLUMNS)
    if not image or not lab or mask is None or shows is None or None in row:
        raise InputError(f"{index}: line {line} is not an image, an optional mask, a lab and words; correct that line")
    for name in filter(None, (image, mask)):
        if not (index.parent / name).is_file():
            raise MissingError(f"{index.parent / name}: is missing, but index.csv lists it; copy the data set again")
    path = index.parent / image
    return RealImage(path.stem, lab, path, index.parent / mask if mask else None, shows)


def list_restained(folder: Path) -> dict[int, dict[int, Path]]:
    """Return the tiles of each place by staining, without the staining that is left out."""
    places: dict[int, dict[int, Path]] = {}
    for path in sorted(folder.glob("*.png")):
        match = re.fullmatch(r"loc(\d+)_stain(\d+)", path.stem)
        if match is None:
            raise InputError(f"{path}: is not called like loc0_stain1.png; rename it, or move it elsewhere")
        if int(match[2]) != LEFT_OUT:
            places.setdefault(int(match[1]), {})[int(match[2])] = path
    _check_stainings(folder, places)
    return places


def _check_stainings(folder: Path, places: dict[int, dict[int, Path]]) -> None:
    """Refuse places that lack a staining."""
    all_stainings: Iterable[int] = sorted({staining for tiles in places.values() for staining in tiles})
    for place, tiles in places.items():
        for staining in all_stainings:
            if staining not in tiles:
                missing = folder / f"loc{place}_stain{staining}.png"
                raise MissingError(f"{missing}: is missing, but other places have it; copy the data set again")


def read_whole(path: Path) -> Pixels:
    """Return the finest level of a small slide as RGB levels (H, W, 3), uint8."""
    with open_slide(path) as slide:
        return slide.read(Region(0, 0, 0, slide.levels[0].width, slide.levels[0].height))
