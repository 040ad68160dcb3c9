import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bottlegan.core.config import parse, to_values
from bottlegan.core.progress import Json, Silent
from bottlegan.core.seeding import numpy_stream
from bottlegan.models.code_maps import encode_maps
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.document import PRIOR
from bottlegan.models.encoder import Look
from bottlegan.models.files import load_model
from bottlegan.models.paradigms import BottleGAN
from bottlegan.models.pixel_sets import VIEWS
from bottlegan.models.style_encoder import StyleEncoder
from bottlegan.models.weights import read_document
from bottlegan.simulation import lab as labs_module
from bottlegan.simulation.lab import PATCHES, draw_labs
from bottlegan.simulation.styles import render, stain_densities
from bottlegan.stain.affine import AffineMap, StyleMaps, both_ways
from bottlegan.stain.density import map_images, to_density, to_rgb
from bottlegan.stain.style import REFERENCE, WIDE, Style, draw_style
from bottlegan.training import prior
from bottlegan.training.lab_samples import KEPT, LabPixels, join_pixels, sample_lab
from bottlegan.training.prior import (
    LOOK_WEIGHTS,
    WORST_CONDITION,
    LabTensors,
    PriorConfig,
    begin_encoder,
    begin_prior,
    draw_known_style,
    judge,
    see_all,
    train_prior,
    true_maps,
)

TINY = PriorConfig(
    model=ModelConfig(code_size=24, generator=GeneratorConfig(width=8, depth=0, mapping=0)),
    known=80,
    width=16,
    encoders=1,
    labs=40,
    finder_steps=40,
    steps=40,
    batch=12,
    pixels=128,
    scored=64,
    finder_rate=0.01,
    rate=0.01,
)
TINTED = Style(
    name="tinted", hematoxylin=(0.9, 1.6, 0.7), eosin=(0.2, 1.1, 0.5), offset=(0.05, 0.1), white=(0.95, 0.97, 0.9)
)


def weights(model: BottleGAN) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}


@pytest.fixture(scope="module")
def pixels() -> dict[int, LabPixels]:
    """Two sets of 40 labs, by seed; of few tissues, because these take most of the time."""
    drawn = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labs_module, "TISSUES", 16)
        for seed in (1, 2):
            labs = enumerate(draw_labs(seed, 0, 40))
            drawn[seed] = join_pixels([sample_lab(lab, numpy_stream(seed, "pixels", index)) for index, lab in labs])
    return drawn


@pytest.fixture
def drawing(pixels: dict[int, LabPixels], monkeypatch: pytest.MonkeyPatch) -> Callable[..., LabPixels]:
    """Let training see these labs instead of drawing its own."""

    def draw(seed: int, labs: int, progress: object = None) -> LabPixels:
        assert labs == TINY.labs
        return pixels[seed]

    monkeypatch.setattr(prior, "draw_pixels", draw)
    return draw


@pytest.fixture(scope="module")
def begun() -> BottleGAN:
    return begin_prior(replace(TINY, known=400), 0)


def test_settings_survive_a_file() -> None:
    assert parse(PriorConfig, to_values(TINY), "file") == TINY


def test_the_true_map_leads_from_a_tinted_style_to_the_reference_stain(content: Tensor) -> None:
    normalized = map_images(true_maps([TINTED]), render(content[:1], TINTED))
    # Not exact: densities are shifted by one gray level, which a white point and glass do not follow.
    assert (normalized - render(content[:1], REFERENCE)).square().mean() < 1e-4


def test_a_prior_maps_a_style_it_has_never_seen_by_its_code_alone(begun: BottleGAN, content: Tensor) -> None:
    maps, images = both_ways(true_maps([TINTED])), render(content[:1], TINTED)
    with torch.no_grad():
        code = encode_maps(begun, maps)
        normalized, restained = begun.normalize(images, code), begun.restain(images, code)
    torch.testing.assert_close(normalized, map_images(maps.normalize, images), rtol=0, atol=2e-3)
    torch.testing.assert_close(restained, map_images(maps.restain, images), rtol=0, atol=2e-3)


def test_a_prior_begins_with_a_reference_stain_and_knows_no_style(begun: BottleGAN) -> None:
    assert len(begun.codes) == 0
    assert begun.codes.size == 24
    torch.testing.assert_close(begun.reference.stains, stain_densities(REFERENCE).float())
    assert len(begun.encoders) == 0
    with pytest.raises(TypeError, match="many-one model"):
        begin_prior(replace(TINY, model=replace(TINY.model, paradigm="many-one")), 0)


def test_styles_that_codes_are_measured_in_can_be_told_from_their_images() -> None:
    styles = [draw_known_style(0, "known", index) for index in range(20)]
    assert len({style.hematoxylin for style in styles}) == 20
    assert torch.linalg.cond(true_maps(styles).matrix).max() < WORST_CONDITION
    undecided = [draw_style(numpy_stream(0, "any", index), "any", WIDE) for index in range(200)]
    assert torch.linalg.cond(true_maps(undecided).matrix).max() > WORST_CONDITION, "else nothing is left out"


def encoder_of(model: BottleGAN) -> StyleEncoder:
    (encoder,) = model.encoders
    assert isinstance(encoder, StyleEncoder)
    return encoder


@torch.no_grad()
def score(encoder: StyleEncoder, labs: LabTensors) -> tuple[float, float]:
    """Return the losses of finding glass and of finding maps, over all labs."""
    random = torch.Generator().manual_seed(0)
    rows = torch.arange(len(labs))
    patches = labs.choose_patches(len(labs), 4, random)
    density, roughness, _, is_glass, _ = labs.draw_seen(rows, patches, 200, random)
    glass = F.binary_cross_entropy_with_logits(encoder.find_glass(density, roughness), is_glass.float())
    sight = see_all(encoder, density, roughness)
    scored = labs.draw_scored(rows, patches, 100, random)
    shown = torch.ones(len(labs), dtype=torch.bool)
    looks = [judge(look, *scored, shown, labs.is_he)["total"] for look in encoder(sight)]
    return float(glass), sum(weight * float(loss) for weight, loss in zip(LOOK_WEIGHTS, looks, strict=True))


class Recorder(Silent):
    def __init__(self) -> None:
        self.events: list[dict[str, Json]] = []

    def event(self, kind: str, **fields: Json) -> None:
        self.events.append(fields)


@pytest.mark.usefixtures("drawing")
def test_a_few_dozen_steps_lower_both_losses_and_train_only_the_encoder(pixels: dict[int, LabPixels]) -> None:
    halfway, after = train_prior(replace(TINY, steps=0), 1), train_prior(TINY, 1)
    assert not after.training
    begun, labs = begin_encoder(TINY, 1), LabTensors(pixels[1])
    encoders = (begun, encoder_of(halfway), encoder_of(after))
    glass, maps = zip(*(score(encoder, labs) for encoder in encoders), strict=True)
    assert glass[1] < 0.75 * glass[0]
    assert glass[2] == glass[1], "what glass is, is learned first and not changed later"
    assert maps[2] < 0.75 * maps[1]
    moved = {
        name for name, weight in encoders[2].state_dict().items() if not torch.equal(weight, begun.state_dict()[name])
    }
    assert {name.split(".")[0] for name in moved} == {"finder", "first", "further"}
    others = {name: bytes_ for name, bytes_ in weights(after).items() if not name.startswith("encoders.")}
    assert others == weights(begin_prior(TINY, 1))


@pytest.mark.usefixtures("drawing")
def test_the_same_seed_gives_the_same_bytes() -> None:
    few = replace(TINY, steps=3, finder_steps=3)
    first, again, other = (train_prior(few, seed) for seed in (1, 1, 2))
    assert weights(first) == weights(again)
    assert weights(first) != weights(other)


@pytest.mark.usefixtures("drawing")
def test_each_encoder_learns_from_labs_of_its_own() -> None:
    few = replace(TINY, steps=3, finder_steps=3)
    both = train_prior(replace(few, encoders=2), 1)
    for number, seed in enumerate((1, 2)):
        alone = encoder_of(train_prior(few, seed)).state_dict()
        learned = both.encoders[number].state_dict()
        assert all(torch.equal(weight, learned[name]) for name, weight in alone.items())


@pytest.mark.usefixtures("drawing")
def test_progress_is_told_every_hundred_steps() -> None:
    recorder = Recorder()
    train_prior(replace(TINY, steps=100, finder_steps=100, batch=2, pixels=32, scored=8), 1, recorder)
    finding, onboarding = recorder.events
    assert (finding["name"], finding["step"]) == ("finding glass", 100)
    assert {"name", "step", "total", "normalize", "restain"} <= onboarding.keys()
    assert all(np.isfinite(value) for value in onboarding.values() if isinstance(value, float))


def draw_marked() -> LabTensors:
    """Return five labs whose pixels tell lab, patch and number, each with its truth."""
    lab, patch, pixel = np.meshgrid(np.arange(5), np.arange(PATCHES), np.arange(KEPT), indexing="ij")
    density = np.stack([lab, patch, pixel], axis=-1)[..., None, :].repeat(VIEWS, axis=-2).astype(np.float16)
    truth = np.stack([lab, patch, pixel % 256], axis=-1).astype(np.uint8)
    flags = np.array([True, True, False, True, False])
    return LabTensors(LabPixels(density, patch.astype(np.float16), truth, pixel % 2 == 0, pixel % 3 == 0, flags, flags))


def test_a_step_sees_pixels_of_the_patches_it_was_told_to() -> None:
    labs, random = draw_marked(), torch.Generator().manual_seed(0)
    rows, patches = torch.tensor([3, 1]), torch.tensor([[0, 5], [2, 2]])
    density, roughness, truth, is_glass, is_nuclear = labs.draw_seen(rows, patches, 300, random)
    assert density.shape == (2, 300, VIEWS, 3)
    assert density.dtype == roughness.dtype == torch.float32
    assert (density[..., 0] == rows[:, None, None]).all()
    assert set(density[0, :, 0, 1].tolist()) == {0, 5}
    assert set(density[1, :, 0, 1].tolist()) == {2}
    assert torch.equal(roughness, density[:, :, 0, 1])
    assert torch.equal(is_glass, density[:, :, 0, 2] % 2 == 0)
    assert torch.equal(is_nuclear, density[:, :, 0, 2] % 3 == 0)
    torch.testing.assert_close(255 * truth, density[:, :, 0] % 256)


def test_half_of_what_maps_are_scored_on_is_of_any_patch() -> None:
    labs, random = draw_marked(), torch.Generator().manual_seed(0)
    rows, patches = torch.tensor([4, 0]), torch.tensor([[6], [1]])
    styled, content = labs.draw_scored(rows, patches, 600, random)
    assert styled.shape == content.shape == (2, 600, 3)
    torch.testing.assert_close(255 * content[..., :2], styled[..., :2])
    assert set(styled[0, :300, 1].tolist()) == {6}
    assert set(styled[0, 300:, 1].tolist()) == set(range(PATCHES))


def test_some_labs_are_shown_by_patches_of_similar_tissue_only() -> None:
    labs = draw_marked()
    patches = labs.choose_patches(2000, 4, torch.Generator().manual_seed(0))
    assert patches.shape == (2000, 4)
    assert all(len(set(row.tolist())) == 4 for row in patches[:100]), "no patch twice"
    tilted = (patches < PATCHES // 2).all(dim=1).float().mean()
    assert float(tilted) == pytest.approx(prior.TILTED, abs=0.05)
    whole = labs.choose_patches(50, PATCHES, torch.Generator().manual_seed(0))
    assert all(sorted(row.tolist()) == list(range(PATCHES)) for row in whole)


class Knowing:
    """An encoder that takes all that is bright for glass."""

    @staticmethod
    def find_glass(density: Tensor, roughness: Tensor) -> Tensor:
        return 0.1 - density[:, :, 0].mean(2)


def test_the_encoder_is_given_tissue_and_the_middle_of_the_glass() -> None:
    density = torch.full((3, 100, VIEWS, 3), 0.7)
    density[0, :40] = torch.linspace(0, 0.08, 40)[:, None, None]
    density[1, :3] = 0.01  # too few to be sure
    sight = see_all(Knowing(), density, torch.zeros(3, 100))  # type: ignore[arg-type]
    assert sight.sees_glass.tolist() == [True, False, False]
    assert sight.is_tissue.sum(1).tolist() == [60, 97, 100]
    torch.testing.assert_close(sight.glass[0], torch.full((3,), 0.04))
    assert not sight.glass[1:].any()


def draw_look(labs: int, wrong: float = 0.0) -> tuple[Look, Tensor, Tensor]:
    """Return what an encoder says that is right but for an error, and pairs of pixels to judge it by."""
    random = torch.Generator().manual_seed(0)
    maps = both_ways(AffineMap((1.3 * torch.eye(3)).repeat(labs, 1, 1), torch.full((labs, 3), -0.1)))
    styled = 0.2 + torch.rand(labs, 50, 3, generator=random)
    content = to_rgb(maps.normalize(styled))
    said = StyleMaps(AffineMap(maps.normalize.matrix * (1 + wrong), maps.normalize.bias), maps.restain)
    amounts = torch.zeros(labs, 50, 3)
    return Look(said, torch.full((labs, 2), -4.0), torch.full((labs,), 9.0), amounts, amounts[..., 0]), styled, content


def test_the_right_maps_have_no_error_and_wrong_ones_have() -> None:
    yes = torch.ones(2, dtype=torch.bool)
    right, wrong = (judge(*draw_look(2, error), yes, yes) for error in (0.0, 0.3))
    assert float(right["normalize"]) < 1e-8
    assert float(right["restain"]) < 1e-8
    assert float(wrong["normalize"]) > 1e-3
    assert float(wrong["restain"]) < 1e-8
    totals = [float(each["total"] - prior.SIDE_WEIGHT * each["sides"]) for each in (right, wrong)]
    assert totals[1] > totals[0] + 0.01


def test_maps_of_what_is_not_he_or_not_shown_do_not_matter() -> None:
    yes = torch.ones(3, dtype=torch.bool)
    look, styled, content = draw_look(3)
    spoiled = content.clone()
    spoiled[2] = 1 - spoiled[2]
    first = torch.tensor([True, True, False])
    for shown, is_he in ((first, yes), (yes, first)):
        losses = [judge(look, styled, each, shown, is_he) for each in (content, spoiled)]
        assert torch.equal(losses[0]["normalize"], losses[1]["normalize"])
        assert torch.equal(losses[0]["total"], losses[1]["total"])
    nobody = judge(look, styled, content, ~yes, yes)
    assert all(loss.isfinite() for loss in nobody.values())


def test_what_it_says_of_itself_is_best_where_it_is_true() -> None:
    yes = torch.ones(2, dtype=torch.bool)
    look, styled, content = draw_look(2, wrong=0.3)
    normalized = (to_rgb(look.maps.normalize(styled)) - content).square().mean((1, 2))
    restained = (to_rgb(look.maps.restain(to_density(content))) - to_rgb(styled)).square().mean((1, 2))
    truth = 0.5 * torch.stack([normalized, restained], dim=1).clamp(min=1e-6).log()
    honest, proud = (
        judge(look._replace(log_errors=said), styled, content, yes, yes)["sides"] for said in (truth, truth - 1)
    )
    assert honest < proud
    doubtful = look._replace(log_errors=truth, is_he=torch.full((2,), -2.0))
    assert honest < judge(doubtful, styled, content, yes, yes)["sides"]
    assert judge(doubtful, styled, content, yes, ~yes)["sides"] < judge(look, styled, content, yes, ~yes)["sides"]


def test_training_leaves_what_it_is_given_alone(pixels: dict[int, LabPixels]) -> None:
    before = copy.deepcopy(pixels[1])
    score(begin_encoder(TINY, 0), LabTensors(pixels[1]))
    assert np.array_equal(before.density, pixels[1].density)
    assert np.array_equal(before.truth, pixels[1].truth)


def test_the_shipped_prior_is_small_and_knows_its_reference_stain() -> None:
    assert PRIOR.stat().st_size <= 1_500_000
    said = read_document(PRIOR)
    assert said.reference == REFERENCE
    assert set(said.encoders) == {PriorConfig().width}
    model = load_model(PRIOR)
    assert isinstance(model, BottleGAN)
    assert model.config == PriorConfig().model
    assert len(model.codes) == 0
    assert 4 * model.codes.size <= 512
    torch.testing.assert_close(model.reference.stains, stain_densities(REFERENCE).float())
    for maps in model.reference.style_maps():
        assert torch.equal(maps.matrix[0], torch.eye(3)), "its stain is the encoder's own"
