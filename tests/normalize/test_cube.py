import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.interpolate import RegularGridInterpolator

from bottlegan.colormap.cube import random_colors, read_cube, tissue_colors
from bottlegan.core.errors import InputError
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.files import save_model
from bottlegan.models.paradigms import BottleGAN, build_model
from bottlegan.normalize.normalizer import Direction, Normalizer
from bottlegan.onboarding.verdict import StyleDiagnosis, Verdict
from bottlegan.stain.style import REFERENCE

DIRECTIONS: tuple[Direction, ...] = ("normalize", "restain")


def known(statistics: str = "frozen", kind: str = "pixel") -> BottleGAN:
    """A model with weights as after training, which knows two styles."""
    generator = GeneratorConfig(width=4, depth=1, mapping=3, statistics=statistics, kind=kind)  # type: ignore[arg-type]
    random = torch.Generator().manual_seed(0)
    built = build_model(ModelConfig(code_size=3, generator=generator), ("a", "b"), random)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=random)
    assert isinstance(built, BottleGAN)
    return built


MODEL = known()
SHARED = Normalizer.from_model(MODEL, "b")


def directly(colors: Pixels, direction: Direction) -> Pixels:
    """Return the torch network's output for colors (N, 3), rounded."""
    with torch.no_grad():
        return from_batch(getattr(MODEL, direction)(to_batch(colors[None]), MODEL.codes["b"]))[0][0]


@settings(max_examples=40)
@given(arrays.arrays(np.uint8, st.tuples(st.integers(1, 40), st.just(3))), st.sampled_from(DIRECTIONS))
def test_the_map_gives_the_rounded_output_of_the_network(colors: Pixels, direction: Direction) -> None:
    expected = directly(colors, direction)
    fresh = Normalizer(SHARED.model, SHARED.code)
    mapped = [each.color_map(direction)(colors) for each in (SHARED, fresh)]  # remembered colors, and new ones
    assert np.array_equal(*mapped)
    assert np.abs(np.subtract(mapped[0], expected, dtype=int)).max() <= 1  # torch's sums may be on an edge


@pytest.mark.parametrize(("direction", "size"), [("normalize", 33), ("restain", 17)])
def test_the_header_tells_the_error_that_others_measure(direction: Direction, size: int, tmp_path: Path) -> None:
    path = tmp_path / "b.cube"
    SHARED.to_cube(path, size, direction)
    text = path.read_text()
    values = np.array([line.split() for line in text.splitlines() if re.match(r"[-\d.]", line)], float)
    grid = values.reshape((size, size, size, 3), order="F")  # red is the first to change
    read = RegularGridInterpolator((np.linspace(0, 255, size),) * 3, grid)
    for name, colors in (("tissue-like", tissue_colors(200_000)), ("random", random_colors(200_000))):
        apart = np.abs(np.rint(255 * read(colors)) - directly(colors, direction))
        told = re.search(rf"# 200000 {name} colors: mean (\S+) levels, largest (\d+) levels, (\S+) % of colors", text)
        assert told is not None
        assert float(told[1]) == pytest.approx(apart.mean(), abs=1e-4)
        assert float(told[2]) == apart.max()
        assert float(told[3]) == pytest.approx(100 * (apart.max(axis=1) > 1).mean(), abs=2e-3)
        assert apart.max() > 0


def test_the_header_says_what_it_is_of(tmp_path: Path) -> None:
    record = {"steps": 7, "style": "c", "verdict": "good", "verdict on c": "good: another's", "gain": 3.0}
    save_model(MODEL, tmp_path / "m.safetensors", record, REFERENCE)
    Normalizer.load(tmp_path / "m.safetensors", "a").to_cube(str(tmp_path / "a.cube"), 17, "restain")
    cube = read_cube(tmp_path / "a.cube")
    assert cube.title == "BottleGAN restain a"
    assert len(cube.grid) == 17
    assert cube.comments[1] == "style: a"
    assert cube.comments[2].startswith("direction: restain, from the reference stain")
    assert cube.comments[3:5] == ("reference stain: S01", "model: steps: 7")  # and nothing of style c
    assert not [line for line in cube.comments if "SHA-256" in line or "verdict" in line]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_colors_in_the_file_are_the_networks_not_rounded_to_levels(direction: Direction, tmp_path: Path) -> None:
    SHARED.to_cube(tmp_path / "b.cube", 17, direction)
    node = read_cube(tmp_path / "b.cube").grid[5, 11, 2]
    with torch.no_grad():
        color = torch.tensor([5, 11, 2])[None, :, None, None] / 16
        exact = getattr(MODEL, direction)(color, MODEL.codes["b"])[0, :, 0, 0].double().numpy()
    assert np.abs(node - exact).max() < 2e-6


def test_what_has_no_table_is_refused(tmp_path: Path) -> None:
    for model in (known(statistics="instance"), known(kind="unet")):
        with pytest.raises(InputError, match="not a map of colors"):
            Normalizer.from_model(model, "a").to_cube(tmp_path / "a.cube")
    with pytest.raises(InputError, match="no direction called sideways; use one of normalize, restain"):
        SHARED.to_cube(tmp_path / "a.cube", direction="sideways")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="17, 33 or 65, got 34"):
        SHARED.to_cube(tmp_path / "a.cube", 34)
    figures = dict.fromkeys(list(StyleDiagnosis.__dataclass_fields__)[2:], 0.0)
    diagnosis = StyleDiagnosis(Verdict.REFUSED, "no stain", **figures)
    refused = Normalizer(SHARED.model, SHARED.code, "blank", diagnosis)
    with pytest.raises(InputError, match=r"style blank is refused \(no stain\).*force"):
        refused.to_cube(tmp_path / "a.cube")
    assert not list(tmp_path.iterdir())
    Normalizer(SHARED.model, SHARED.code, "blank", diagnosis, forced=True).to_cube(tmp_path / "a.cube", 17)
    assert "verdict: refused: no stain" in read_cube(tmp_path / "a.cube").comments
