from pathlib import Path

import numpy as np
import pytest
import skimage
import skimage.io
import torch
from numpy.typing import NDArray
from scipy import ndimage

from bottlegan.data.peso import PesoPatches
from bottlegan.models.document import PRIOR
from bottlegan.models.weights import ModelWeights, read_weights
from bottlegan.onboarding.fit import onboard
from bottlegan.onboarding.verdict import StyleDiagnosis, Verdict
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import Tissue, draw_tissue
from bottlegan.simulation.tissue_parts import noise
from bottlegan.stain.style import LABORATORIES, LABS, WIDE, Style, draw_style

SIZE = 160
HEMATOXYLIN, DAB = np.array([0.65, 0.70, 0.29]), np.array([0.27, 0.57, 0.78])
PENS = {"blue": (0.1, 0.15, 0.6), "green": (0.05, 0.45, 0.2), "black": (0.06, 0.06, 0.08), "red": (0.8, 0.08, 0.1)}
Pixels = NDArray[np.uint8]


@pytest.fixture(scope="module")
def prior() -> ModelWeights:
    return read_weights(PRIOR)


def diagnose(levels: Pixels, model: ModelWeights) -> StyleDiagnosis:
    return onboard([levels], model).diagnosis


def is_refused(levels: Pixels, model: ModelWeights) -> bool:
    return diagnose(levels, model).verdict == Verdict.REFUSED


def to_levels(rgb: np.ndarray) -> Pixels:
    return (255 * rgb.clip(0, 1)).round().astype(np.uint8)


def tissue(index: int) -> Tissue:
    return draw_tissue(seed=11, index=index, size=SIZE)


def stain(concentration: torch.Tensor, style: Style) -> Pixels:
    jitter = torch.Generator().manual_seed(0)
    return to_levels(render(concentration[None], style, jitter)[0].permute(1, 2, 0).numpy())


def on_glass(density: np.ndarray, seed: int) -> Pixels:
    random = np.random.default_rng(seed)
    return to_levels(0.96 * np.exp(-density) + random.normal(0, 0.008, density.shape))


def draw_ihc(index: int, kind: str, strength: float, positive: float = 1.0) -> Pixels:
    drawn, random = tissue(index), np.random.default_rng(index)
    hematoxylin, eosin = drawn.concentration.numpy()
    epithelium, there = drawn.epithelium.numpy(), hematoxylin + eosin > 0.1
    nuclei, count = ndimage.label((hematoxylin > 0.35) & epithelium)
    chosen = np.isin(nuclei, 1 + np.flatnonzero(random.random(count) < positive))
    brown = {
        "nuclear": chosen * (0.7 + 0.5 * hematoxylin),
        "membrane": 1.0 * (ndimage.binary_dilation(chosen, iterations=2) & ~chosen),
        "cytoplasm": epithelium * (0.4 + 0.8 * eosin) * (nuclei == 0),
    }[kind]
    brown = ndimage.gaussian_filter(strength * brown, 0.7) + 0.03 * there
    blue = 0.9 * (0.06 + hematoxylin) * there * (1 - 0.6 * chosen * (kind == "nuclear")) + 0.01
    return on_glass(1.6 * (blue[..., None] * HEMATOXYLIN + brown[..., None] * DAB), index)


def draw_fluorescence(channels: tuple[int, ...]) -> Pixels:
    drawn = tissue(0)
    hematoxylin, eosin = drawn.concentration.numpy().clip(0, 1)
    rgb = np.zeros((SIZE, SIZE, 3))
    for channel, signal in zip(channels, (hematoxylin, 0.8 * eosin * drawn.epithelium.numpy()), strict=False):
        rgb[..., channel] = signal
    return to_levels(rgb + np.abs(np.random.default_rng(0).normal(0.01, 0.01, rgb.shape)))


def draw_ink(color: str, seed: int, lines: int = 4, width: int = 5) -> np.ndarray:
    random = np.random.default_rng(seed)
    covered = np.zeros((SIZE, SIZE), bool)
    at = np.linspace(0, 1, 4 * SIZE)[:, None]
    for _ in range(lines):
        a, b, c = random.uniform(0, SIZE, (3, 2))
        row, column = ((1 - at) ** 2 * a + 2 * at * (1 - at) * b + at**2 * c).astype(int).T
        covered[row, column] = True
    even = ndimage.gaussian_filter(1.0 * ndimage.binary_dilation(covered, iterations=width // 2 + 1), 1)
    amount = even * (1 + 0.25 * noise(random, SIZE, 20) + 0.1 * noise(random, SIZE, 3)).clip(0.1)
    return amount[..., None] * -np.log(PENS[color])


def read_bundled(name: str) -> Pixels:
    """An image inside the wheel of scikit-image: `skimage.data` may ask the network."""
    levels = np.asarray(skimage.io.imread(Path(skimage.__file__).parent / "data" / name))[..., :3]
    return np.ascontiguousarray(levels[::2, ::2])


IHC = [
    (kind, *rest)
    for kind in ("nuclear", "membrane", "cytoplasm")
    for rest in ((1, 1.3, 1.0), (2, 0.6, 0.9), (0, 2.0, 0.3))
]


def test_immunohistochemistry_is_mostly_refused_and_hardly_ever_good(prior: ModelWeights) -> None:
    """A little brown between the nuclei looks much like eosin."""
    verdicts = [diagnose(draw_ihc(i, kind, strength, positive), prior).verdict for kind, i, strength, positive in IHC]
    assert verdicts.count(Verdict.REFUSED) >= 5
    assert verdicts.count(Verdict.GOOD) <= 2


def test_real_immunohistochemistry_is_refused(prior: ModelWeights) -> None:
    found = diagnose(read_bundled("ihc.png"), prior)
    assert found.verdict == Verdict.REFUSED
    assert "not those of hematoxylin and eosin" in found.reason


def test_fluorescence_is_refused_or_at_least_not_good(prior: ModelWeights) -> None:
    assert is_refused(draw_fluorescence((2,)), prior)
    assert diagnose(draw_fluorescence((2, 1)), prior).verdict != Verdict.GOOD


PHOTOGRAPHS = ("astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg", "motorcycle_left.png")


def test_some_photographs_are_refused(prior: ModelWeights) -> None:
    """Not all of them: a cat has colors that stained tissue could have."""
    assert sum(is_refused(read_bundled(name), prior) for name in PHOTOGRAPHS) >= 1


def test_a_gray_image_is_refused(prior: ModelWeights) -> None:
    gray = stain(tissue(1).concentration, LABORATORIES[0]).mean(2, keepdims=True).astype(np.uint8).repeat(3, 2)
    assert is_refused(gray, prior)


@pytest.mark.parametrize("present", [0, 1])
@pytest.mark.parametrize("lab", [0, 3])
def test_one_stain_alone_is_not_good(present: int, lab: int, prior: ModelWeights) -> None:
    concentration = tissue(1).concentration.clone()
    concentration[1 - present] = 0
    rgb = 0.97 * stain(concentration, LABORATORIES[lab]) / 255
    found = diagnose(to_levels(rgb + np.random.default_rng(0).normal(0, 0.006, rgb.shape)), prior)
    assert found.verdict != Verdict.GOOD


@pytest.mark.parametrize("color", ["blue", "green", "black", "red"])
def test_a_pen_on_glass_is_not_good(color: str, prior: ModelWeights) -> None:
    """Two pens that cross pass for two stains, as the model card says."""
    assert diagnose(on_glass(draw_ink(color, 0), 0), prior).verdict != Verdict.GOOD


@pytest.mark.parametrize("index", range(4))
def test_usual_labs_are_not_refused_and_their_error_is_expected_to_be_small(index: int, prior: ModelWeights) -> None:
    style = draw_style(np.random.default_rng([7, index]), "lab", LABS)
    found = diagnose(stain(tissue(index).concentration, style), prior)
    assert found.verdict != Verdict.REFUSED
    assert found.expected_error < 25
    assert found.is_he > 0.8


def test_usual_labs_are_mostly_good(prior: ModelWeights) -> None:
    styles = [draw_style(np.random.default_rng([8, index]), "lab", LABS) for index in range(10)]
    images = [stain(tissue(index).concentration, style) for index, style in enumerate(styles)]
    assert sum(diagnose(image, prior).verdict == Verdict.GOOD for image in images) >= 6


def test_strange_styles_are_hardly_ever_refused(prior: ModelWeights) -> None:
    styles = [draw_style(np.random.default_rng([33, index]), "lab", WIDE) for index in range(20)]
    images = [stain(tissue(index % 5).concentration, style) for index, style in enumerate(styles)]
    assert sum(is_refused(image, prior) for image in images) <= 2


@pytest.mark.parametrize("side", [0.32, 0.14])
def test_tissue_in_a_corner_is_not_refused(side: float, prior: ModelWeights) -> None:
    concentration = torch.full((2, SIZE, SIZE), 0.01)
    corner = round(side * SIZE)
    concentration[:, :corner, :corner] = tissue(1).concentration[:, :corner, :corner]
    assert not is_refused(stain(concentration, LABORATORIES[0]), prior)


def test_mostly_fat_is_not_refused(prior: ModelWeights) -> None:
    hole = torch.from_numpy(noise(np.random.default_rng(0), SIZE, 15) < 0.8)
    assert not is_refused(stain(tissue(2).concentration * ~hole, LABORATORIES[3]), prior)


def test_stains_of_nearly_one_color_are_not_good(prior: ModelWeights) -> None:
    style = Style(name="alike", hematoxylin=(1.3, 1.6, 0.9), eosin=(0.62, 0.8, 0.46))
    assert diagnose(stain(tissue(1).concentration, style), prior).verdict != Verdict.GOOD


def test_real_artificial_styles_are_hardly_ever_refused(peso: PesoPatches, prior: ModelWeights) -> None:
    files = sorted((peso.root / "styled").glob("*.webp"))[::12]
    refused = [path.name for path in files if is_refused(skimage.io.imread(path)[..., :3], prior)]
    assert len(refused) <= len(files) // 10, refused
