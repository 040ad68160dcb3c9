"""A slide, end to end.

Draw a slide, look at its verdict, normalize it, and write a picture of before and after. It is what `bottlegan
normalize slide.tiff normalized.tiff` does, in Python.

Needs `pip install 'bottlegan[slides]'`.
"""

from pathlib import Path

import numpy as np
from openslide import OpenSlide
from PIL import Image

from bottlegan.models.document import PRIOR
from bottlegan.normalize.choice import MapChoice
from bottlegan.normalize.slides.one import SlideOptions, map_slide
from bottlegan.simulation.lab_folder import draw_lab
from bottlegan.simulation.slide import write_slide


def show(path: Path) -> Image.Image:
    """Return a small picture of a slide."""
    with OpenSlide(path) as slide:
        return slide.get_thumbnail((512, 512))


if __name__ == "__main__":
    folder = Path("example-output/slide")
    folder.mkdir(parents=True, exist_ok=True)
    source, target = folder / "slide.tiff", folder / "normalized.tiff"  # put your own slide here
    if not source.exists():
        write_slide(source, 2048, seed=3, style=draw_lab(3))

    # The map is fitted to tiles of tissue. MapChoice(PRIOR, like=other) would go to another slide's stain.
    make_map = MapChoice(PRIOR).prepare()
    result = map_slide(source, target, make_map, SlideOptions(quality=90))
    print("verdict:", result.note["verdict"], "-", result.note["reason"])
    print(f"{result.megapixels:.1f} megapixels, {len(result.broken)} unreadable tiles")

    picture = np.hstack([np.array(show(path).convert("RGB")) for path in (source, target)])
    Image.fromarray(picture).save(folder / "before-after.png")
    print("wrote", target, "and", folder / "before-after.png")
