from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import skimage
import skimage.io
import torch
from numpy.typing import NDArray
from scipy import ndimage

from bottlegan.data.peso import PesoPatches
from bottlegan.data.synthetic import Tissue, draw_tissue
from bottlegan.data.tissue_parts import noise
from bottlegan.models.files import PRIOR, load_model
from bottlegan.models.paradigms import BottleGAN
from bottlegan.slides.image import to_batch
from bottlegan.stain.macenko import Route, fit_density_map, sample_density
from bottlegan.stain.simulate import LABORATORIES, LABS, WIDE, Style, draw_style, render
from bottlegan.training.diagnosis import StyleDiagnosis, Verdict, find_doubt, find_refusal
from bottlegan.training.evidence import Evidence, gather_evidence
from bottlegan.training.onboard import onboard

SIZE = 160
HEMATOXYLIN, DAB = np.array([0.65, 0.70, 0.29]), np.array([0.27, 0.57, 0.78])
PENS = {"blue": (0.1, 0.15, 0.6), "green": (0.05, 0.45, 0.2), "black": (0.06, 0.06, 0.08), "red": (0.8, 0.08, 0.1)}
Levels = NDArray[np.uint8]


@pytest.fixture(scope="module")
def prior() -> BottleGAN:
    if not PRIOR.is_file():
        pytest.skip("the prior is not there")
    model = load_model(PRIOR)
    assert isinstance(model, BottleGAN)
    return model


def diagnose(levels: Levels, model: BottleGAN) -> StyleDiagnosis:
    return onboard([levels], model).diagnosis


def refusal(levels: Levels, model: BottleGAN) -> str:
    """Why the images are refused, which no network decides: as `onboard` would say, in a tenth of its time."""
    reference = model.reference.statistics()
    density = sample_density(to_batch(levels))
    found = fit_density_map(density, reference).diagnoses[0]
    figures = StyleDiagnosis(Verdict.GOOD, "", 0, 1, 0, found.tissue, found.angle, found.order_margin, 1, 0)
    return find_refusal(gather_evidence(density, reference), figures)


def to_levels(rgb: np.ndarray) -> Levels:
    return (255 * rgb.clip(0, 1)).round().astype(np.uint8)


def tissue(index: int) -> Tissue:
    return draw_tissue(seed=11, index=index, size=SIZE)


def stain(concentration: torch.Tensor, style: Style) -> Levels:
    jitter = torch.Generator().manual_seed(0)
    return to_levels(render(concentration[None], style, jitter)[0].permute(1, 2, 0).numpy())


def on_glass(density: np.ndarray, seed: int) -> Levels:
    random = np.random.default_rng(seed)
    return to_levels(0.96 * np.exp(-density) + random.normal(0, 0.008, density.shape))


def draw_ihc(index: int, kind: str, strength: float, positive: float = 1.0) -> Levels:
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


def draw_fluorescence(channels: tuple[int, ...]) -> Levels:
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


def draw_landscape() -> Levels:
    random, down = np.random.default_rng(0), np.linspace(0, 1, SIZE)[:, None]
    flat = np.zeros((SIZE, SIZE))
    sky = np.stack([0.45 + 0.4 * down + flat, 0.65 + 0.25 * down + flat, 0.95 + flat], axis=2)
    leaves = 0.1 * noise(random, SIZE, 8)
    grass = np.stack([0.25 + leaves, 0.45 + leaves + 0.1 * noise(random, SIZE, 40), 0.12 + flat], axis=2)
    return to_levels(np.where((down < 0.5 + 0.06 * noise(random, SIZE, 60))[..., None], sky, grass))


def read_bundled(name: str) -> Levels:
    """An image inside the wheel of scikit-image: `skimage.data` may ask the network."""
    levels = np.asarray(skimage.io.imread(Path(skimage.__file__).parent / "data" / name))[..., :3]
    return np.ascontiguousarray(levels[::2, ::2])


@pytest.mark.parametrize("kind", ["nuclear", "membrane", "cytoplasm"])
@pytest.mark.parametrize(("index", "strength", "positive"), [(1, 1.3, 1.0), (2, 0.6, 0.9), (0, 2.0, 0.3)])
def test_immunohistochemistry_is_refused(kind, index, strength, positive, prior) -> None:
    assert "DAB" in refusal(draw_ihc(index, kind, strength, positive), prior)


def test_a_refusal_reaches_the_lab(prior) -> None:
    found = diagnose(draw_ihc(1, "nuclear", 1.3), prior)
    assert found.verdict == Verdict.REFUSED
    assert "DAB" in found.reason


def test_real_immunohistochemistry_is_refused(prior) -> None:
    assert "DAB" in refusal(read_bundled("ihc.png"), prior)


@pytest.mark.parametrize("channels", [(2,), (2, 1)])
def test_fluorescence_is_refused(channels, prior) -> None:
    assert "fluorescence" in refusal(draw_fluorescence(channels), prior)


@pytest.mark.parametrize("name", ["astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg", "motorcycle_left.png"])
def test_photographs_are_refused(name, prior) -> None:
    assert refusal(read_bundled(name), prior)


def test_a_landscape_is_refused(prior) -> None:
    assert "photograph" in refusal(draw_landscape(), prior)


@pytest.mark.parametrize(
    ("tint", "sigma"), [((1, 1, 1), 0.01), ((0.95, 0.9, 0.8), 0.01), ((0.8, 0.8, 0.82), 0.01), ((1, 1, 1), 0.03)]
)
def test_bare_glass_is_refused(tint, sigma, prior) -> None:
    grain = np.random.default_rng(0).normal(0, sigma, (SIZE, SIZE, 3))
    assert "no tissue" in refusal(to_levels(0.96 * np.array(tint) + grain), prior)


@pytest.mark.parametrize("present", [0, 1])
@pytest.mark.parametrize("lab", [0, 3])
def test_one_stain_alone_is_refused(present, lab, prior) -> None:
    concentration = tissue(1).concentration.clone()
    concentration[1 - present] = 0
    rgb = 0.97 * stain(concentration, LABORATORIES[lab]) / 255
    assert "one stain" in refusal(to_levels(rgb + np.random.default_rng(0).normal(0, 0.006, rgb.shape)), prior)


@pytest.mark.parametrize("colors", [["blue"], ["green"], ["black"], ["red"], ["blue", "red"], ["green", "black"]])
def test_a_pen_on_glass_is_refused(colors, prior) -> None:
    ink = sum(draw_ink(color, seed) for seed, color in enumerate(colors))
    assert isinstance(ink, np.ndarray)
    assert "pen" in refusal(on_glass(ink, 0), prior)


def test_much_pen_over_tissue_is_uncertain(prior) -> None:
    rgb = stain(tissue(0).concentration, LABORATORIES[0]) / 255
    found = diagnose(to_levels(rgb * np.exp(-draw_ink("red", 1, lines=6, width=12))), prior)
    assert found.verdict == Verdict.UNCERTAIN


@pytest.mark.parametrize("index", range(4))
def test_usual_labs_are_good(index, prior) -> None:
    style = draw_style(np.random.default_rng([7, index]), "lab", LABS)
    found = diagnose(stain(tissue(index).concentration, style), prior)
    assert (found.verdict, found.reason) == (Verdict.GOOD, "two stains found")


@pytest.mark.parametrize("index", range(20))
def test_strange_styles_are_not_refused(index, prior) -> None:
    style = draw_style(np.random.default_rng([33, index + 3]), "lab", WIDE)
    assert not refusal(stain(tissue(index % 5).concentration, style), prior)


@pytest.mark.parametrize("side", [0.32, 0.14])
def test_tissue_in_a_corner_is_not_refused(side, prior) -> None:
    concentration = torch.full((2, SIZE, SIZE), 0.01)
    corner = round(side * SIZE)
    concentration[:, :corner, :corner] = tissue(1).concentration[:, :corner, :corner]
    found = diagnose(stain(concentration, LABORATORIES[0]), prior)
    assert found.verdict == (Verdict.GOOD if side > 0.3 else Verdict.UNCERTAIN)


def test_mostly_fat_is_not_refused(prior) -> None:
    hole = torch.from_numpy(noise(np.random.default_rng(0), SIZE, 15) < 0.8)
    assert not refusal(stain(tissue(2).concentration * ~hole, LABORATORIES[3]), prior)


def test_stains_of_nearly_one_color_are_uncertain(prior) -> None:
    style = Style(name="alike", hematoxylin=(1.3, 1.6, 0.9), eosin=(0.62, 0.8, 0.46))
    found = diagnose(stain(tissue(1).concentration, style), prior)
    assert found.verdict == Verdict.UNCERTAIN
    assert "same color" in found.reason or "stands out" in found.reason


def test_a_scanner_that_cuts_off_is_uncertain(prior) -> None:
    rgb = stain(tissue(1).concentration, LABORATORIES[0]) / 255
    found = diagnose(to_levels(1.5 * rgb), prior)
    assert found.verdict == Verdict.UNCERTAIN
    assert "cut off" in found.reason


def test_real_artificial_styles_are_not_refused(peso: PesoPatches, prior) -> None:
    for path in sorted((peso.root / "styled").glob("*.webp"))[::40]:
        assert not refusal(skimage.io.imread(path)[..., :3], prior), path.name


USUAL = StyleDiagnosis(Verdict.GOOD, "", 0.03, 2, 0, 0.8, 30, 0.75, 1, 0.02)
SEEN = Evidence(0.05, 0.4, 1.6, 0.8, 0.3, (0.5, 0.1, 0.005), 1, 0, 0.02, 2, 0.3)


def test_nothing_unusual_is_no_doubt() -> None:
    assert not find_doubt(SEEN, USUAL, Route.STAINS, exchanged=0.06)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"tissue": 0.02}, "2.0% of the pixels"),
        ({"angle": 2}, "same color"),
        ({"condition": 40}, "same color"),
        ({"order_margin": 0.1}, "tell apart"),
        ({"order_margin": 0.5, "distance": 0.058}, "tell apart"),
        ({"outside": 0.2}, "20% of the tissue"),
        ({"distance": 0.08}, "distributed unlike"),
        ({"strangeness": 10}, "far from all"),
    ],
)
def test_each_unusual_figure_is_a_doubt(changed, reason) -> None:
    assert reason in find_doubt(SEEN, replace(USUAL, **changed), Route.STAINS, exchanged=0.06)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"cut": 0.6}, "cut off"),
        ({"unlike": 0.1}, "distributed unlike"),
        ({"brown": 0.5, "off_brown": 0.05}, "brown immunohistochemistry"),
    ],
)
def test_each_unusual_sight_is_a_doubt(changed, reason) -> None:
    assert reason in find_doubt(replace(SEEN, **changed), USUAL, Route.STAINS, exchanged=0.06)


def test_two_slightly_unusual_distances_are_a_doubt_together() -> None:
    far = replace(USUAL, distance=0.055)
    assert not find_doubt(SEEN, far, Route.STAINS, exchanged=0.1)
    assert "distributed unlike" in find_doubt(replace(SEEN, unlike=0.06), far, Route.STAINS, exchanged=0.1)


def test_a_style_left_as_it_is_is_a_doubt() -> None:
    assert "stands out" in find_doubt(SEEN, USUAL, Route.IDENTITY, exchanged=0.06)


def test_flat_tissue_on_much_glass_is_no_ink() -> None:
    strokes = replace(SEEN, shown=0.15, flatness=0.6, unlike=0.1)
    assert "pen" in find_refusal(strokes, replace(USUAL, order_margin=0.1))
    assert not find_refusal(replace(strokes, unlike=0.03), replace(USUAL, order_margin=0.1))
    assert not find_refusal(strokes, USUAL)
