import pytest
import torch
from torch import Tensor, nn

from bottlegan.models.config import GeneratorConfig, ModelConfig, Paradigm
from bottlegan.models.paradigms import PARADIGMS, BottleGAN, ManyToMany, ManyToOne, OneToOne, StyleModel, build_model
from bottlegan.models.style_encoder import StyleEncoder

NAMES = ("a", "b", "c")
every = pytest.mark.parametrize("paradigm", PARADIGMS)
both = pytest.mark.parametrize("kind", ["pixel", "unet"])


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def built(paradigm: Paradigm, kind: str = "pixel", seed: int = 0, trained: bool = False) -> StyleModel:
    """A tiny model, or with other weights than zero, as after training, everywhere."""
    generator = GeneratorConfig(kind="unet" if kind == "unet" else "pixel", width=4, depth=1, mapping=5)
    random = torch.Generator().manual_seed(seed)
    model = build_model(ModelConfig(paradigm=paradigm, code_size=4, generator=generator), NAMES, random)
    if trained:
        for name, parameter in model.named_parameters():
            if name != "codes.table":
                nn.init.normal_(parameter, std=0.3, generator=random)
    return model


@every
@both
@pytest.mark.parametrize("size", [(8, 8), (7, 5), (1, 3)])
def test_images_keep_their_shape_and_range(paradigm: Paradigm, kind: str, size: tuple[int, int]) -> None:
    model, images = built(paradigm, kind, trained=True), noise(3, 3, *size)
    for use in (model.normalize, model.restain):
        output = use(images, model.codes.table)
        assert output.shape == images.shape
        assert output.dtype == torch.float32
        assert ((output >= 0) & (output <= 1)).all()
        assert (output - images).abs().max() > 1e-3


@every
@both
def test_one_code_is_that_code_for_each_image(paradigm: Paradigm, kind: str) -> None:
    model, images = built(paradigm, kind, trained=True), noise(2, 3, 6, 5)
    code = model.codes["b"].detach()
    with torch.no_grad():
        for use in (model.normalize, model.restain):
            for other in (torch.stack([code, code]), code[None]):
                torch.testing.assert_close(use(images, other), use(images, code), rtol=0, atol=1e-5)


@every
@both
def test_it_is_the_identity_until_trained(paradigm: Paradigm, kind: str) -> None:
    model, images = built(paradigm, kind), noise(3, 3, 6, 6)
    for use in (model.normalize, model.restain):
        torch.testing.assert_close(use(images, model.codes.table), images, rtol=0, atol=1e-5)


@every
@both
def test_every_parameter_is_trained_the_codes_included(paradigm: Paradigm, kind: str) -> None:
    model = built(paradigm, kind)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert ("codes.table" in trainable) == (paradigm != "many-one-one")
    optimizer = torch.optim.SGD(trainable.values(), lr=0.1)
    # Zeros in the last layers hide the others from the first gradient.
    for _ in range(2):
        optimizer.zero_grad()
        images, wanted = noise(3, 3, 6, 6), noise(3, 3, 6, 6, seed=5)
        outputs = [use(images, model.codes.table) for use in (model.normalize, model.restain)]
        sum((output - wanted).square().mean() for output in outputs).backward()
        optimizer.step()
    for name, parameter in trainable.items():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-10, name


@every
@both
def test_the_same_stream_builds_the_same_model_and_leaves_the_global_one(paradigm: Paradigm, kind: str) -> None:
    before = torch.random.get_rng_state()
    one = built(paradigm, kind, seed=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(77)
        again, other = built(paradigm, kind, seed=1), built(paradigm, kind, seed=2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert one.state_dict().keys() == again.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in one.state_dict().items())
    assert not all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


def test_building_takes_as_much_of_the_stream_whatever_the_network() -> None:
    small, large = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    build_model(ModelConfig(generator=GeneratorConfig(width=2)), NAMES, small)
    build_model(ModelConfig(generator=GeneratorConfig(width=9, depth=3)), NAMES, large)
    assert torch.equal(small.get_state(), large.get_state())


@pytest.mark.parametrize("paradigm", ["many-one-many", "many-one", "many-one-one"])
def test_styles_differ_in_both_directions(paradigm: Paradigm) -> None:
    model, images = built(paradigm, trained=True), noise(1, 3, 6, 6).expand(3, -1, -1, -1)
    for use in (model.normalize, model.restain):
        a, b, c = use(images, model.codes.table).detach()
        assert min((a - b).abs().max(), (a - c).abs().max(), (b - c).abs().max()) > 1e-3


@every
def test_the_two_directions_differ(paradigm: Paradigm) -> None:
    model, images = built(paradigm, trained=True), noise(3, 3, 6, 6)
    codes = model.codes.table
    assert (model.normalize(images, codes) - model.restain(images, codes)).abs().max() > 1e-3


def test_many_to_many_normalizes_without_knowing_the_style() -> None:
    model, images = built("many-many", trained=True), noise(1, 3, 6, 6)
    assert isinstance(model, ManyToMany)
    with torch.no_grad():
        assert torch.equal(model.normalize(images, model.codes["a"]), model.normalize(images, model.codes["b"]))
        assert torch.equal(model.normalize(images, model.codes["a"]), model.restain(images, model.reference_code))


def test_many_to_one_tells_its_generator_the_direction() -> None:
    model, images = built("many-one", trained=True), noise(1, 3, 6, 6)
    assert isinstance(model, ManyToOne)
    there, back = (torch.cat([model.codes["a"], torch.tensor([sign])])[None] for sign in (1.0, -1.0))
    with torch.no_grad():
        assert torch.equal(model.normalize(images, model.codes["a"]), model.generator(images, there))
        assert torch.equal(model.restain(images, model.codes["a"]), model.generator(images, back))


def test_one_to_one_has_generators_for_each_style_alone() -> None:
    model, images = built("many-one-one", trained=True), noise(1, 3, 6, 6).expand(3, -1, -1, -1)
    assert isinstance(model, OneToOne)
    assert model.codes.table.tolist() == torch.eye(3).tolist()
    assert model.config.code_size == 3
    with torch.no_grad():
        before = model.normalize(images, model.codes.table), model.restain(images, model.codes.table)
        model.normalizers[1].last.bias += 0.5  # type: ignore[union-attr, operator]
        after = model.normalize(images, model.codes.table), model.restain(images, model.codes.table)
    assert [torch.equal(x, y) for x, y in zip(before[0], after[0], strict=True)] == [True, False, True]
    assert torch.equal(before[1], after[1])


def test_the_kinds_of_model_are_built_by_name() -> None:
    kinds = {paradigm: type(built(paradigm)) for paradigm in PARADIGMS}
    assert kinds == {
        "many-one-many": BottleGAN,
        "many-many": ManyToMany,
        "many-one": ManyToOne,
        "many-one-one": OneToOne,
    }


def test_the_number_of_parameters_by_hand() -> None:
    # Mapping 4 -> 5 -> 5, convolution 3 -> 4, its modulation 5 -> 8, last 4 -> 3, skip 4 -> 12.
    one = (4 * 5 + 5) + (5 * 5 + 5) + (3 * 4 + 4) + (5 * 8 + 8) + (4 * 3 + 3) + (4 * 12 + 12)
    assert built("many-one-many").generator_parameters() == 2 * one
    assert built("many-many").generator_parameters() == one + 4  # the code of the reference stain
    assert built("many-one").generator_parameters() == one + 5 + 12  # one more input, the direction
    assert built("many-one-one").generator_parameters() == 6 * (one - 3 * (5 + 12))  # one input instead of four


def test_an_encoder_is_no_generator() -> None:
    model = built("many-one-many")
    assert isinstance(model, BottleGAN)
    assert len(model.encoders) == 0
    before = model.generator_parameters()
    model.encoders.append(StyleEncoder(torch.eye(2, 3), 4))
    assert model.generator_parameters() == before
    assert any(name.startswith("encoders.") for name in model.state_dict())


def test_adding_a_style_changes_no_other_styles_map() -> None:
    model, images = built("many-one-many", trained=True), noise(1, 3, 9, 9)
    with torch.no_grad():
        before = model.normalize(images, model.codes["b"])
        model.codes.add("new", torch.ones(4))
        model.codes.remove("a")
        assert torch.equal(model.normalize(images, model.codes["b"]), before)
