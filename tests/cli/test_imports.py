"""Mapping and onboarding need neither torch nor any extra: commands run without them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from bottlegan.cli.main import EXTRAS
from bottlegan.imaging.files import Pixels, write_image
from bottlegan.imaging.tensors import from_batch
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES

BLOCKED = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "scipy", "skimage", "torchmetrics", "jinja2", "markupsafe"):
            raise ImportError(f"{name} is not to be imported")

sys.meta_path.insert(0, Block())
"""
COMMAND = BLOCKED + "from bottlegan.cli.main import main; main()"
LIBRARY = (
    BLOCKED
    + """
from pathlib import Path
import numpy as np
from bottlegan.normalize.normalizer import Normalizer

image = np.load(sys.argv[1])
fitted = Normalizer.fit(image)
fitted.save("lab.safetensors")
loaded = Normalizer.load("lab.safetensors")
assert np.array_equal(fitted(image), loaded(image))
assert np.array_equal(fitted.restain(image), loaded.restain(image))
assert np.array_equal(fitted.uncertainty(image), loaded.uncertainty(image))
assert np.array_equal(fitted.like(image)(image), fitted.like(loaded)(image))
loaded.to_cube("lab.cube", 17)
"""
)


@pytest.fixture(scope="module")
def tissue() -> Pixels:
    return from_batch(render(draw_tissue(4, 0, 256).concentration[None], LABORATORIES[5]))[0]


@pytest.fixture(scope="module")
def root(tissue: Pixels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image in a folder, and a model that knows its style."""
    root = tmp_path_factory.mktemp("imports")
    (root / "images").mkdir()
    write_image(root / "images" / "a.png", tissue)
    Normalizer.fit(tissue, name="lab").save(root / "m.safetensors")
    return root


@pytest.fixture(scope="module")
def slide(root: Path, tissue: Pixels) -> Path:
    tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
    pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
    pytest.importorskip("simplejpeg", reason="needs pip install 'bottlegan[slides]'")
    form = {"tile": (128, 128), "photometric": "rgb", "metadata": None, "compression": "jpeg"}
    with tifffile.TiffWriter(root / "slide.tiff") as file:
        file.write(tissue, resolution=(1e4, 1e4), resolutionunit="CENTIMETER", **form)
        file.write(tissue[::2, ::2], subfiletype=1, **form)
    return root / "slide.tiff"


def run(program: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_block_holds(root: Path) -> None:
    for module in ("torch", "scipy.ndimage", "bottlegan.normalize.tensors"):
        done = run(f"{BLOCKED}import {module}", root)
        assert "is not to be imported" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "normalize images/a.png known.png --model m.safetensors --style lab",
        "normalize images fitted",
        "normalize images each --each --like images/a.png",
        "restain images/a.png back.png --model m.safetensors --style lab",
        "info images/a.png",
        "info m.safetensors",
        "lut --model m.safetensors --out lab.cube",
    ],
)
def test_of_images_and_models(words: str, root: Path) -> None:
    done = run(COMMAND, root, *words.split())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "normalize slide.tiff known.tiff --model m.safetensors --style lab --to lab",
        "normalize slide.tiff fitted.tiff",
        "restain slide.tiff back.tiff --model m.safetensors --style lab",
        "info slide.tiff",
    ],
)
def test_of_slides(words: str, slide: Path) -> None:
    done = run(COMMAND, slide.parent, *words.split())
    assert done.returncode == 0, done.stderr


def test_of_the_library(tissue: Pixels, tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", tissue)
    done = run(LIBRARY, tmp_path, "image.npy")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", sorted(EXTRAS))
def test_a_package_of_an_extra_is_no_dependency_of_the_core(package: str) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name = {"skimage": "scikit-image", "ray": "flwr"}.get(package, package)
    assert any(line.startswith(name) for line in project["optional-dependencies"][EXTRAS[package]])
    assert not any(line.startswith(name) for line in project["dependencies"])


def test_a_command_without_its_extra_names_it_in_one_line(root: Path) -> None:
    blocked = BLOCKED.replace('ImportError(f"{name} is not to be imported")', "ModuleNotFoundError(name=name)")
    code = blocked.replace('"torch", ', "")
    words = [sys.executable, "-c", code + "from bottlegan.cli.main import main; main()", "evaluate", "images", "images"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"bottlegan: \w+ is not installed; pip install 'bottlegan\[quality\]'\n", done.stderr)
