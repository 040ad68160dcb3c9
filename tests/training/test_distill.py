from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bottlegan.core.config import parse, to_values
from bottlegan.core.errors import ConfigError, InputError
from bottlegan.core.seeding import numpy_stream, torch_stream
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, from_levels, to_batch, to_levels
from bottlegan.models.code_maps import decode_maps, encode_maps
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.critics import CriticConfig
from bottlegan.models.files import to_weights
from bottlegan.models.paradigms import BottleGAN, build_model
from bottlegan.onboarding.fit import onboard
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.affine import AffineMap, StyleMaps, both_ways
from bottlegan.stain.density import map_images
from bottlegan.stain.style import LABORATORIES, LABS, REFERENCE, draw_style
from bottlegan.training.distill import DistillConfig, distill, fit_maps, restain_images, restain_pixels
from bottlegan.training.gan import TrainConfig, train
from bottlegan.training.prior import true_maps
from bottlegan.training.samples import collect
from bottlegan.training.warm import begin_at_maps

MODEL = ModelConfig(generator=GeneratorConfig(width=16, depth=1, mapping=16))
QUICK = DistillConfig(train=replace(DistillConfig().train, model=MODEL, steps=30, batch=16))
NAMES = ["a", "b", "c"]


def teach(maps: AffineMap, model: ModelConfig = MODEL) -> BottleGAN:
    """Return a client's model that holds one map and also bends colors a little."""
    teacher = build_model(model, ["x"], torch.Generator().manual_seed(0))
    assert isinstance(teacher, BottleGAN)
    begin_at_maps(teacher, both_ways(maps))
    with torch.no_grad():
        for generator in (teacher.normalizer, teacher.restainer):
            generator.last.weight.normal_(0, 0.005, generator=torch.Generator().manual_seed(1))
    return teacher.eval()


@pytest.fixture(scope="module")
def maps() -> AffineMap:
    return true_maps([draw_style(numpy_stream(4, name), name, LABS) for name in NAMES])


@pytest.fixture(scope="module")
def teachers(maps: AffineMap) -> dict[str, BottleGAN]:
    return {name: teach(maps.choose(torch.tensor([row]))) for row, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def tissue() -> Tensor:
    return torch.stack([draw_tissue(8, index, 96).concentration for index in range(7)])


@pytest.fixture(scope="module")
def reference_set(tissue: Tensor) -> list[Pixels]:
    return from_batch(render(tissue[:4], REFERENCE))


@pytest.fixture(scope="module")
def unseen(tissue: Tensor) -> Tensor:
    return render(tissue[4:], REFERENCE)


@pytest.fixture(scope="module")
def distilled(teachers: dict[str, BottleGAN], reference_set: list[Pixels]) -> BottleGAN:
    return distill(teachers, reference_set, QUICK)


@torch.no_grad()
def compare(model: BottleGAN, name: str, teacher: BottleGAN, images: Tensor) -> tuple[float, float]:
    """Return the MSE against a teacher, of restaining and of normalizing the teacher's images."""
    own, code = teacher.codes.table[0], model.codes[name]
    restained = from_levels(to_levels(teacher.restain(images, own)))
    back = (model.normalize(restained, code) - teacher.normalize(restained, own)).square().mean().item()
    return (model.restain(images, code) - restained).square().mean().item(), back


def test_it_does_what_each_teacher_does_and_not_what_another_does(
    distilled: BottleGAN, teachers: dict[str, BottleGAN], unseen: Tensor
) -> None:
    assert distilled.codes.names == NAMES
    for name in NAMES:
        own = compare(distilled, name, teachers[name], unseen)
        others = [compare(distilled, name, teachers[other], unseen) for other in NAMES if other != name]
        assert max(own) < 2e-4
        assert min(min(other) for other in others) > 10 * max(own)


def test_steps_learn_what_no_affine_map_can_hold(
    teachers: dict[str, BottleGAN], reference_set: list[Pixels], unseen: Tensor
) -> None:
    bent = {}
    for name, teacher in teachers.items():
        again = build_model(MODEL, ["x"], torch.Generator())
        assert isinstance(again, BottleGAN)
        again.load_state_dict(teacher.state_dict())
        with torch.no_grad():
            again.restainer.last.weight.mul_(200)
        bent[name] = again.eval()
    errors = []
    for steps in (0, 60):
        model = distill(bent, reference_set, replace(QUICK, train=replace(QUICK.train, steps=steps, rate=3e-3)))
        errors.append(sum(compare(model, name, bent[name], unseen)[0] for name in NAMES))
    assert errors[1] < 0.5 * errors[0]


def test_the_same_arguments_give_the_same_bytes(teachers: dict[str, BottleGAN], reference_set: list[Pixels]) -> None:
    few = replace(QUICK, train=replace(QUICK.train, steps=3))
    first, again, other = (distill(teachers, reference_set, few, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_a_newcomer_can_be_onboarded(distilled: BottleGAN, tissue: Tensor) -> None:
    """Its map is not a mix of the three clients' maps."""
    styled, truth = render(tissue[4:], LABORATORIES[7]), render(tissue[4:], REFERENCE)
    found = onboard(from_batch(styled), to_weights(distilled))
    with torch.no_grad():
        left = (distilled.normalize(styled, torch.from_numpy(found.code)) - truth).square().mean()
    assert left < 0.1 * (styled - truth).square().mean()


def test_a_newcomer_may_have_any_two_maps(distilled: BottleGAN) -> None:
    """The two maps that onboarding finds for a real lab are not exact inverses, unlike those of simulated styles."""
    random = torch.Generator().manual_seed(0)
    matrices = torch.eye(3) + 0.3 * torch.randn(2, 5, 3, 3, generator=random)
    wanted = StyleMaps(*(AffineMap(matrix, 0.1 * torch.randn(5, 3, generator=random)) for matrix in matrices))
    with torch.no_grad():
        held = decode_maps(distilled, encode_maps(distilled, wanted))
    for ours, theirs in zip(held, wanted, strict=True):
        torch.testing.assert_close(ours.matrix, theirs.matrix, rtol=0, atol=0.02)
        torch.testing.assert_close(ours.bias, theirs.bias, rtol=0, atol=0.02)


@pytest.mark.parametrize("density", [0.0, 1.0, 10.0], ids=["white", "gray", "black"])
def test_one_teacher_that_makes_everything_one_color_does_not_harm_the_others(
    density: float, teachers: dict[str, BottleGAN], reference_set: list[Pixels], unseen: Tensor
) -> None:
    flat = teach(AffineMap(torch.eye(3)[None] * 1e6, torch.tensor([[-1e6 * density] * 3])))
    model = distill({**teachers, "flat": flat}, reference_set, QUICK)
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
    for name in NAMES:
        assert max(compare(model, name, teachers[name], unseen)) < 1e-3


def test_a_teacher_that_looks_around_a_pixel_restains_whole_images(reference_set: list[Pixels]) -> None:
    form = ModelConfig(code_size=4, generator=GeneratorConfig(width=4, depth=1, mapping=0, statistics="instance"))
    teacher = build_model(form, ["x"], torch.Generator().manual_seed(0))
    assert isinstance(teacher, BottleGAN)
    content = collect({"c": reference_set}, 1, 5, torch.device("cpu")).pool
    with torch.no_grad():
        teacher.restainer.last.weight.fill_(0.1)
        whole = teacher.restain(to_batch(reference_set[0]), teacher.codes.table[0])
    pixels = restain_pixels(teacher, reference_set, content, 5)
    where = torch.randint(96 * 96, (4096,), generator=torch_stream(5, "pool", 0))
    assert torch.equal(pixels[0, :, 0], from_levels(to_levels(whole[0].flatten(1)[:, where])))


def test_the_adversarial_option_trains_with_critics_on_restained_images(
    teachers: dict[str, BottleGAN], reference_set: list[Pixels], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}
    config = DistillConfig(
        adversarial=True,
        train=TrainConfig(
            model=MODEL,
            critic=CriticConfig(width=4, depth=2),
            steps=2,
            warm_steps=1,
            batch=2,
            pixels=32,
            crop=32,
            crops=2,
            adversarial_weight=0.1,
            check_every=1,
        ),
    )

    def watched(labs, reference, *arguments, **options):
        seen.update(labs)
        return train(labs, reference, *arguments, **options)

    monkeypatch.setattr("bottlegan.training.distill.train", watched)
    model = distill(teachers, reference_set, config)
    assert model.codes.names == NAMES
    assert model.reference.known
    for name in NAMES:
        assert (seen[name][1] == restain_images(teachers[name], reference_set)[1]).all()


def test_what_cannot_be_distilled_is_refused(teachers: dict[str, BottleGAN], reference_set: list[Pixels]) -> None:
    two = build_model(MODEL, ["x", "y"], torch.Generator())
    assert isinstance(two, BottleGAN)
    with pytest.raises(InputError, match="model of odd has 2 styles"):
        distill({**teachers, "odd": two}, reference_set, QUICK)
    with pytest.raises(InputError, match="no client's model"):
        distill({}, reference_set, QUICK)
    with pytest.raises(InputError, match="no reference image"):
        distill(teachers, [], QUICK)


@pytest.mark.parametrize(
    "form", [ModelConfig(paradigm="many-one"), ModelConfig(generator=GeneratorConfig(kind="unet"))]
)
def test_a_model_that_cannot_be_the_end_of_it_is_refused(form: ModelConfig) -> None:
    with pytest.raises(ConfigError, match="set `"):
        DistillConfig(train=TrainConfig(model=form))


def test_settings_survive_a_file() -> None:
    assert parse(DistillConfig, to_values(QUICK), "file") == QUICK


def test_maps_are_found_again(reference_set: list[Pixels], maps: AffineMap) -> None:
    """Some pixels are clipped, and procedural tissue says nothing about colors off its plane."""
    content = collect({"c": reference_set}, 1, 0, torch.device("cpu")).pool
    styled = torch.stack([map_images(maps.choose(torch.tensor([row])).inverse(), content) for row in range(3)])
    found = fit_maps(from_levels(to_levels(styled)), content)
    assert torch.linalg.cond(found.matrix).max() < 3 * torch.linalg.cond(maps.matrix).max()
    for row, pixels in enumerate(styled):
        mapped = map_images(found.choose(torch.tensor([row])), pixels)
        assert (mapped - content).square().mean() < 1e-4
