from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from bottlegan.core.errors import InputError
from bottlegan.models.paradigms import BottleGAN
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.normalize.transforms import Normalize, RandomRestain, Restain
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import REFERENCE

NAMES = ("a", "b", "c", "d")


@pytest.fixture(scope="module")
def model(draw_model: Callable[..., BottleGAN]) -> BottleGAN:
    """A small model with weights as after training, which knows four styles."""
    return draw_model(NAMES)


@pytest.fixture(scope="module")
def content() -> Tensor:
    """Twelve reference-stained patches, no two alike."""
    drawn = draw_tissue(seed=4, index=0, size=64).concentration
    return torch.stack(
        [render(drawn[None, :, y : y + 16, x : x + 16], REFERENCE)[0] for y in (0, 20, 40) for x in range(4)]
    )


def drawn_styles(restained: Tensor, content: Tensor, model: BottleGAN) -> list[str]:
    """Return the style to which each image was restained, if any."""
    styles = []
    with torch.no_grad():
        for image, given in zip(restained, content, strict=True):
            known = {"none": given} | {name: model.restain(given[None], model.codes[name])[0] for name in NAMES}
            (found,) = [name for name, output in known.items() if torch.allclose(output, image, atol=1e-5)]
            styles.append(found)
    return styles


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_normalize_and_restain_are_the_model_on_a_batch_and_on_each_image(model: BottleGAN, content: Tensor) -> None:
    normalizer = Normalizer.from_model(model, "b")
    with torch.no_grad():
        pairs = {
            Normalize(normalizer): model.normalize(content, model.codes["b"]),
            Restain(normalizer): model.restain(content, model.codes["b"]),
        }
    for transform, expected in pairs.items():
        torch.testing.assert_close(transform(content), expected, rtol=0, atol=1e-5)
        one_by_one = torch.cat([transform(image[None]) for image in content])
        torch.testing.assert_close(one_by_one, expected, rtol=0, atol=1e-5)


def test_all_styles_of_a_model_are_drawn_and_about_as_often(model: BottleGAN, content: Tensor) -> None:
    transform = RandomRestain(model)
    counts = Counter(style for _ in range(20) for style in drawn_styles(transform(content), content, model))
    assert set(counts) == set(NAMES)
    assert min(counts.values()) > 0.15 * counts.total()


def test_a_batch_is_its_images_one_after_another(model: BottleGAN, content: Tensor) -> None:
    whole = RandomRestain(model, p=0.7, generator=seeded(5))(content)
    single = RandomRestain(model, p=0.7, generator=seeded(5))
    torch.testing.assert_close(whole, torch.cat([single(image[None]) for image in content]), rtol=0, atol=1e-5)
    assert len(set(drawn_styles(whole, content, model))) > 2


def test_seeds_decide_and_the_global_generator_does_not(model: BottleGAN, content: Tensor) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (RandomRestain(model, seed=seed)(content) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(*(RandomRestain(model, seed=seed, generator=seeded(3))(content) for seed in (1, 2)))


def test_the_next_call_draws_anew(model: BottleGAN, content: Tensor) -> None:
    transform = RandomRestain(model)
    assert not torch.equal(transform(content), transform(content))


def test_workers_draw_differently(model: BottleGAN, content: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker of a data loader has a copy of the transform; only the worker's seed differs."""
    outputs = []
    for seed in (None, 11, 12, 11):
        worker = None if seed is None else SimpleNamespace(seed=seed)
        monkeypatch.setattr("bottlegan.normalize.transforms.get_worker_info", lambda worker=worker: worker)
        outputs.append(RandomRestain(model)(content))
    alone, first, second, again = outputs
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, alone)


def test_p_is_the_share_of_images_that_are_restained(model: BottleGAN, content: Tensor) -> None:
    assert torch.equal(RandomRestain(model, p=0)(content), content)
    assert "none" not in drawn_styles(RandomRestain(model, p=1)(content), content, model)
    transform = RandomRestain(model, p=0.25)
    styles = [style for _ in range(20) for style in drawn_styles(transform(content), content, model)]
    assert 0.65 < styles.count("none") / len(styles) < 0.85
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match="probability"):
            RandomRestain(model, p=wrong)


def test_styles_may_be_a_file_or_normalizers(model: BottleGAN, content: Tensor, tmp_path: Path) -> None:
    model.save(tmp_path / "m.safetensors")
    expected = RandomRestain(model)(content)
    each = [Normalizer.from_model(model, name) for name in NAMES]
    for styles in (tmp_path / "m.safetensors", str(tmp_path / "m.safetensors"), each, tuple(each)):
        assert torch.equal(RandomRestain(styles)(content), expected)
    assert set(drawn_styles(RandomRestain(each[2])(content), content, model)) == {"c"}


def test_without_any_style_there_is_nothing_to_draw(model: BottleGAN) -> None:
    with pytest.raises(InputError, match="no style to restain to"):
        RandomRestain([])
    with pytest.raises(InputError, match="got a BottleGAN"):
        RandomRestain([model])  # type: ignore[list-item]


def test_all_styles_share_the_weights_of_one_model(model: BottleGAN) -> None:
    normalizers = RandomRestain(model).normalizers
    assert len({id(each.model.arrays["restainer.last.weight"]) for each in normalizers}) == 1


def test_a_network_around_it_neither_trains_nor_saves_it(model: BottleGAN, content: Tensor) -> None:
    network = nn.Sequential(RandomRestain(model), nn.Conv2d(3, 1, 1))
    assert set(network.state_dict()) == {"1.weight", "1.bias"}
    network(content).sum().backward()
    assert network[1].weight.grad is not None
    assert RandomRestain(model)(content[:0]).shape == (0, 3, 16, 16)


def test_one_image_is_a_batch_of_one(model: BottleGAN, content: Tensor) -> None:
    normalizer = Normalizer.from_model(model, "a")
    for transform in (Normalize(normalizer), Restain(normalizer), RandomRestain(normalizer)):
        assert torch.equal(transform(content[0]), transform(content[:1])[0])
    assert torch.equal(normalizer.uncertainty(content[0]), normalizer.uncertainty(content[:1])[0])


def test_what_is_no_batch_is_refused(model: BottleGAN, content: Tensor) -> None:
    with pytest.raises(InputError, match=r"\(16, 16\)"):
        Normalize(Normalizer.from_model(model, "a"))(content[0, 0])
    for transform in (RandomRestain(model), RandomRestain(model, p=0)):
        with pytest.raises(InputError, match="0, 1"):
            transform(255 * content)
