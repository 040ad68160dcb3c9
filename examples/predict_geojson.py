"""Predict on a slide, and open the outlines in QuPath.

A federation of two drawn labs trains a network for epithelium, for some 15 seconds. The network then predicts on a
slide of a third lab, whose style it has never seen. It writes a map of classes and, beside it, outlines as GeoJSON.

In QuPath, open the slide, then drag `epithelium.geojson` onto it, or use *File > Import objects from file*. Each
class is an annotation with its name and color.

Needs `pip install 'bottlegan[slides]'`.
"""

import json
from collections import Counter
from pathlib import Path

from bottlegan.cli.main import app
from bottlegan.simulation.lab_folder import draw_lab
from bottlegan.simulation.slide import write_slide

FEDERATION = """
[labs]
count = 2
test = 1
size = 128
window_size = 128
reference_patches = 1
[phase2]
rounds = 8
[phase2.task]
micrometers = 1.0
[phase2.network]
arguments = { width = 8, depth = 3, stride = 2 }
[phase2.training]
steps = 30
crop = 64
learning_rate = 0.01
"""


def run(*arguments: object) -> None:
    """Run a command, as `bottlegan ...` in a shell would."""
    app([str(argument) for argument in arguments], standalone_mode=False)


if __name__ == "__main__":
    work = Path("example-output/predict")
    work.mkdir(parents=True, exist_ok=True)
    config, network, slide = work / "federation.toml", work / "run" / "network.safetensors", work / "slide.tiff"
    config.write_text(FEDERATION, encoding="utf-8")
    if not network.exists():
        run("simulate", config, "--out", work / "run", "--engine", "local")
    if not slide.exists():
        write_slide(slide, 1536, seed=7, style=draw_lab(7))

    run("predict", network, slide, work / "epithelium.tiff")
    outlines = json.loads((work / "epithelium.geojson").read_text(encoding="utf-8"))["features"]
    names = Counter(outline["properties"]["classification"]["name"] for outline in outlines)
    print("outlines:", dict(names))
