import subprocess
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch

from bottlegan.core.errors import InputError, MissingError
from bottlegan.imaging.files import Pixels
from bottlegan.models.paradigms import BottleGAN
from bottlegan.normalize import adapters
from bottlegan.normalize.normalizer import Normalizer

NAMES = ("a", "b", "c")


@pytest.fixture(scope="module")
def model(draw_model: Callable[..., BottleGAN]) -> BottleGAN:
    return draw_model(NAMES)


@pytest.fixture(scope="module")
def normalizer(model: BottleGAN) -> Normalizer:
    return Normalizer.from_model(model, "b")


@pytest.fixture
def monai() -> Any:
    return pytest.importorskip("monai.transforms", reason="MONAI is not installed; run `pip install monai`")


@pytest.fixture
def albumentations() -> Any:
    reason = "Albumentations is not installed; run `pip install albumentations`"
    return pytest.importorskip("albumentations", reason=reason)


def noise(*shape: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)


IMAGE = noise(9, 12)


def first(array: Pixels) -> Pixels:
    """Channels first, as in MONAI."""
    return np.ascontiguousarray(array.transpose(2, 0, 1))


def styles_of(image: Pixels, model: BottleGAN) -> dict[str, bytes]:
    return {name: Normalizer.from_model(model, name).restain(image).tobytes() for name in NAMES}


def test_monai_maps_levels_and_intensities(monai: Any, normalizer: Normalizer) -> None:
    pairs = {adapters.NormalizeStaind: normalizer(IMAGE), adapters.Restaind: normalizer.restain(IMAGE)}
    for kind, expected in pairs.items():
        pipeline = monai.Compose([kind(keys="image", normalizer=normalizer)])
        levels = pipeline({"image": first(IMAGE), "label": 3})
        assert isinstance(levels["image"], np.ndarray)
        assert levels["image"].dtype == np.uint8
        assert np.array_equal(levels["image"], first(expected))
        assert levels["label"] == 3
        assert torch.equal(
            pipeline({"image": torch.from_numpy(first(IMAGE))})["image"], torch.from_numpy(first(expected))
        )
        floats = pipeline({"image": (first(IMAGE) / 255).astype(np.float32)})["image"]
        assert floats.dtype == np.float32
        assert np.abs(255 * floats - first(expected)).max() < 0.51


def test_monai_keeps_what_it_knows_of_an_image(monai: Any, normalizer: Normalizer) -> None:
    meta = pytest.importorskip("monai.data", reason="MONAI is not installed; run `pip install monai`").MetaTensor
    affine = torch.diag(torch.tensor([2.0, 3.0, 1.0, 1.0]))
    image = meta(torch.from_numpy(first(IMAGE)).float() / 255, affine=affine, meta={"filename": "a.png"})
    output = adapters.NormalizeStaind("image", normalizer)({"image": image})["image"]
    assert isinstance(output, meta)
    assert output.meta["filename"] == "a.png"
    assert torch.equal(output.affine, image.affine)
    assert not torch.equal(output.as_tensor(), image.as_tensor())
    assert torch.equal(output.as_tensor(), normalizer(image.as_tensor()[None])[0])


def test_monai_leaves_its_input_alone_and_misses_keys_as_told(monai: Any, normalizer: Normalizer) -> None:
    data = {"image": first(IMAGE)}
    adapters.NormalizeStaind("image", normalizer)(data)
    assert np.array_equal(data["image"], first(IMAGE))
    with pytest.raises(KeyError, match="other"):
        adapters.NormalizeStaind(["image", "other"], normalizer)(data)
    lenient = adapters.NormalizeStaind(["image", "other"], normalizer, allow_missing_keys=True)
    assert set(lenient(data)) == {"image"}


def test_monai_draws_from_all_styles_by_its_own_seed(monai: Any, model: BottleGAN) -> None:
    known = styles_of(IMAGE, model)

    def run(seed: int, **options: Any) -> list[bytes]:
        pipeline = monai.Compose([adapters.RandRestaind(["x", "y"], model, **options)]).set_random_state(seed)
        outputs = [pipeline({"x": first(IMAGE), "y": first(IMAGE)}) for _ in range(20)]
        assert all(np.array_equal(output["x"], output["y"]) for output in outputs)
        return [np.ascontiguousarray(output["x"].transpose(1, 2, 0)).tobytes() for output in outputs]

    assert set(run(0)) == set(known.values())
    assert run(0) == run(0) != run(1)
    assert set(run(0, prob=0.0)) == {IMAGE.tobytes()}
    assert set(run(0, prob=0.5)) == {IMAGE.tobytes(), *known.values()}


def test_monai_says_what_is_wrong_with_an_image(monai: Any, normalizer: Normalizer) -> None:
    transform = adapters.NormalizeStaind("image", normalizer)
    for image in (255 * np.ones((3, 4, 4), np.float32), np.ones((4, 4, 3), np.uint8), np.ones((3, 4, 4), np.int64)):
        with pytest.raises(InputError, match="must"):
            transform({"image": image})


def test_albumentations_maps_levels(albumentations: Any, normalizer: Normalizer) -> None:
    pairs = {adapters.NormalizeStain: normalizer(IMAGE), adapters.Restain: normalizer.restain(IMAGE)}
    mask = np.ones(IMAGE.shape[:2], np.uint8)
    for kind, expected in pairs.items():
        output = albumentations.Compose([kind(normalizer)])(image=IMAGE, mask=mask)
        assert np.array_equal(output["image"], expected)
        assert np.array_equal(output["mask"], mask)
        assert np.array_equal(kind(normalizer, p=0)(image=IMAGE)["image"], IMAGE)


def test_albumentations_draws_from_all_styles_by_its_own_seed(albumentations: Any, model: BottleGAN) -> None:
    known = styles_of(IMAGE, model)

    def run(seed: int, p: float = 1.0) -> list[bytes]:
        pipeline = albumentations.Compose([adapters.RandomRestain(model, p=p)], seed=seed)
        return [pipeline(image=IMAGE)["image"].tobytes() for _ in range(20)]

    assert set(run(0)) == set(known.values())
    assert run(0) == run(0) != run(1)
    assert set(run(0, p=0.5)) == {IMAGE.tobytes(), *known.values()}


@pytest.mark.parametrize("name", adapters.__all__)
def test_worker_processes_can_have_them(name: str, request: pytest.FixtureRequest, normalizer: Normalizer) -> None:
    for_monai = name in adapters.FOR_MONAI
    request.getfixturevalue("monai" if for_monai else "albumentations")
    transform = getattr(adapters, name)(*(["image"] if for_monai else []), normalizer)
    assert type(ForkingPickler.loads(ForkingPickler.dumps(transform))) is type(transform)


@pytest.mark.parametrize(("package", "name"), [("monai", "RandRestaind"), ("albumentations", "NormalizeStain")])
def test_a_library_that_is_missing_is_named(package: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(module: str) -> None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    adapters._for_monai.cache_clear()
    adapters._for_albumentations.cache_clear()
    monkeypatch.setattr(adapters, "import_module", absent)
    with pytest.raises(MissingError, match=f"pip install {package}"):
        getattr(adapters, name)


def test_importing_the_adapters_imports_neither_library() -> None:
    program = "import sys, bottlegan.normalize.adapters; print({'monai', 'albumentations'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_no_other_name_is_there() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        _ = adapters.Nothing
