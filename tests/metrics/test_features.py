import math
import pickle
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bottlegan.core.errors import InputError, MissingError
from bottlegan.metrics.features import InceptionFeatures, OfflineFeatures, offline_features
from bottlegan.stain.density import to_density, to_rgb

sizes = st.integers(1, 20)
few = settings(max_examples=25)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def waves(height: int = 24, width: int = 32) -> Tensor:
    """Return an image `(3, H, W)` from a formula, so that no random generator can change it."""
    y, x = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    return torch.stack([0.5 + 0.4 * torch.sin(x / (2 + c) + y / (5 - c)) for c in range(3)])


@few
@given(sizes, sizes, st.integers(0, 99))
def test_features_are_finite_for_any_size(height: int, width: int, seed: int) -> None:
    features = offline_features(noise(3, height, width, seed=seed))
    assert features.shape == (OfflineFeatures.num_features,)
    assert features.dtype == torch.float64
    assert features.isfinite().all()


def test_features_of_a_batch_are_exactly_those_of_its_images() -> None:
    images = noise(5, 3, 19, 23)
    batch = OfflineFeatures()(images)
    assert torch.equal(batch, torch.stack([offline_features(image) for image in images]))
    assert torch.equal(OfflineFeatures()(images.flip(0)), batch.flip(0))


def test_a_blank_image_has_a_color_and_no_texture() -> None:
    color = torch.tensor([0.9, 0.5, 0.7])
    features = offline_features(color[:, None, None].expand(-1, 16, 16))
    torch.testing.assert_close(features[:3], to_density(color.double()))
    torch.testing.assert_close(features[3:], torch.zeros(30, dtype=torch.float64))


def test_a_second_layer_of_stain_moves_the_means_only() -> None:
    # Optical densities add up. The features must see this as a change of color, not of texture.
    image = 0.2 + 0.8 * noise(3, 20, 20).double()
    layer = torch.tensor([0.1, 0.3, 0.2], dtype=torch.float64)
    before, after = offline_features(image), offline_features(to_rgb(to_density(image) + layer[:, None, None]))
    torch.testing.assert_close(after[:3], before[:3] + layer)
    torch.testing.assert_close(after[3:], before[3:])


def test_the_six_deviations_are_the_covariance() -> None:
    image = noise(3, 20, 20, seed=4).double()
    covariance = torch.cov(to_density(image).flatten(1), correction=0)
    deviations = offline_features(image)[3:9]
    torch.testing.assert_close(deviations[:3].square(), covariance.diag())
    for deviation, (one, other) in zip(deviations[3:], [(0, 1), (0, 2), (1, 2)], strict=True):
        found = (covariance[one, one] + covariance[other, other] - deviation.square()) / 2
        torch.testing.assert_close(found, covariance[one, other])


def test_slopes_know_their_direction() -> None:
    ramp = torch.linspace(0, 1, 64, dtype=torch.float64).expand(3, 64, 64)
    across, down = (offline_features(to_rgb(density))[12:15] for density in (ramp, ramp.mT))
    step = 1 / 63
    edge = math.sqrt(1 - (2 - 2 / 4) / 64)  # in the first and the last column only half of the slope is seen
    torch.testing.assert_close(across, step * edge * torch.tensor([1, 0.5, 0.5], dtype=torch.float64))
    torch.testing.assert_close(down, step * edge * torch.tensor([0, 0.75**0.5, 0.75**0.5], dtype=torch.float64))


def test_a_coarser_texture_shows_at_a_coarser_scale() -> None:
    def bands(period: int) -> Tensor:
        wave = torch.sin(torch.arange(96).double() * math.tau / period)
        return offline_features(to_rgb(1 + wave.expand(3, 96, -1)))[9:].reshape(4, 6)[:, 0]

    assert [int(bands(period).argmax()) for period in (3, 8, 16, 32)] == [0, 1, 2, 3]


def test_features_of_this_name_never_change() -> None:
    # If this fails on purpose, OfflineFeatures needs a new name: old and new distances must not be compared.
    assert OfflineFeatures.name == "offline-v1"
    assert not OfflineFeatures.comparable
    weights = torch.arange(1, 34, dtype=torch.float64).sqrt()
    assert (offline_features(waves()) @ weights).item() == pytest.approx(37.03706395803921, rel=1e-9)


class TinyInception(nn.Module):
    """Stands in for torch-fidelity's network, which unpickles a path carelessly, so it must never get one."""

    def __init__(self, name: str, features_list: list[str], weights: object) -> None:
        super().__init__()
        assert features_list == ["2048"]
        assert not isinstance(weights, str | Path), "the file is not for torch-fidelity to unpickle"
        self.norm = nn.BatchNorm1d(2048)
        self.load_state_dict(torch.load(weights, weights_only=True))  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> tuple[Tensor]:
        assert images.dtype == torch.uint8
        return (self.norm(images.double().mean(dim=(1, 2, 3)).float()[:, None].expand(-1, 2048)),)


@pytest.fixture
def torch_fidelity(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torch_fidelity.feature_extractor_inceptionv3")
    module.FeatureExtractorInceptionV3 = TinyInception  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_fidelity", ModuleType("torch_fidelity"))
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "inception.pth"
    state = nn.BatchNorm1d(2048).state_dict()
    torch.save({f"norm.{name}": value for name, value in state.items()}, path)
    return path


@pytest.mark.usefixtures("torch_fidelity")
def test_inception_sees_levels_and_each_image_alone_even_in_training(weights: Path) -> None:
    extractor = InceptionFeatures(weights).train()
    images = torch.stack([torch.full((3, 5, 7), level) for level in (0.0, 0.5, 1.0)])
    features = extractor(images)
    assert features.shape == (3, extractor.num_features)
    torch.testing.assert_close(features[:, 0], torch.tensor([0.0, 128.0, 255.0]), rtol=1e-4, atol=0)
    torch.testing.assert_close(extractor(images[1:2]), features[1:2])
    assert not any(parameter.requires_grad for parameter in extractor.parameters())
    assert extractor.comparable


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.usefixtures("torch_fidelity")
@pytest.mark.parametrize("zipped", [True, False])
def test_inception_weights_cannot_run_code(tmp_path: Path, zipped: bool) -> None:
    canary, weights = tmp_path / "canary", tmp_path / "evil.pth"
    torch.save({"norm.weight": Payload(canary)}, weights, _use_new_zipfile_serialization=zipped)
    pickle.loads(pickle.dumps(Payload(canary)))  # noqa: S301
    assert canary.exists(), "the payload itself must work"
    canary.unlink()
    with pytest.raises(InputError, match=r"evil\.pth is not a file of plain tensors"):
        InceptionFeatures(weights)
    assert not canary.exists()


@pytest.mark.usefixtures("torch_fidelity")
def test_files_that_are_not_inception_weights_are_named(tmp_path: Path) -> None:
    path = tmp_path / "other.pth"
    for content in (b"", b"hello", b"PK\x03\x04", bytes(100)):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"other\.pth is not a file of plain tensors"):
            InceptionFeatures(path)
    for value in (torch.zeros(2), {"norm.weight": 1}, {1: torch.zeros(2)}):
        torch.save(value, path)
        with pytest.raises(InputError, match=r"other\.pth is not a dictionary of tensors"):
            InceptionFeatures(path)
    torch.save({"norm.weight": torch.zeros(2)}, path)
    with pytest.raises(InputError, match=r"other\.pth does not hold the weights"):
        InceptionFeatures(path)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"no Inception weights at .*nowhere\.pth"):
        InceptionFeatures(tmp_path / "nowhere.pth")


def test_a_missing_package_is_named(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    with pytest.raises(InputError, match="pip install torch-fidelity"):
        InceptionFeatures(weights)
