from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import bottlegan
from bottlegan.core.errors import InputError, ModelFileError
from bottlegan.core.task import Task
from bottlegan.data.labels import Labeled
from bottlegan.metrics.tally import compute_scores, tally
from bottlegan.models.document import PRIOR
from bottlegan.models.network_file import load_network
from bottlegan.models.networks import NetworkConfig
from bottlegan.models.weights import ModelWeights, read_weights, write_weights
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.predict.predictor import Predictor
from bottlegan.training.task import lay_out, score, to_truth


@pytest.mark.parametrize("name", ["plain", "three", "patches"])
def test_prediction_is_what_was_scored_in_training(
    name: str, networks: dict[str, Path], labeled: dict[str, list[Labeled]]
) -> None:
    built, said = load_network(networks[name])
    # A lab that stains as the reference does needs no normalizer.
    predictor = Predictor(built, said, PRIOR, lambda image: image)
    layout, total = lay_out(said.task), torch.zeros(lay_out(said.task).size, dtype=torch.float64)
    for each in labeled[name]:
        logits = torch.from_numpy(predictor(each.image).probabilities).log().reshape(said.task.count, -1).T
        total += tally(logits, to_truth(each.truth).flatten(), layout)
    wanted = compute_scores(score(built, labeled[name], said.task, said.temperature), layout, said.task.classes)
    found = compute_scores(total, layout, said.task.classes)
    assert found == pytest.approx(wanted, abs=1e-4)
    assert wanted["accuracy" if name == "patches" else "dice"] > 0.4


def test_probabilities_add_up_and_classes_are_the_most_probable(predictor: Predictor, lab: list[Labeled]) -> None:
    found = predictor(lab[0].image)
    assert found.names == ("other", "epithelium")
    assert found.probabilities.shape == (2, 128, 128)
    assert found.probabilities.dtype == np.float32
    np.testing.assert_allclose(found.probabilities.sum(0), 1, atol=1e-6)
    assert np.array_equal(found.classes, found.probabilities.argmax(0))
    assert found.classes.dtype == np.uint8


def test_the_normalizer_is_applied_by_itself(predictor: Predictor, lab: list[Labeled]) -> None:
    image = lab[0].image
    once = predictor(image)
    fitted = predictor.fit([each.image for each in lab])
    normalizer = Normalizer.fit([each.image for each in lab])
    by_hand = predictor.using(lambda _: normalizer(image))(image)
    assert np.array_equal(fitted(image).probabilities, by_hand.probabilities)
    assert not np.array_equal(predictor.using(lambda image: image)(image).probabilities, once.probabilities)


def test_a_known_style_needs_no_fit(networks: dict[str, Path], lab: list[Labeled], tmp_path: Path) -> None:
    Normalizer.fit([each.image for each in lab], name="uppsala").save(tmp_path / "styles.safetensors")
    named = Predictor.load(networks["binary"], model=tmp_path / "styles.safetensors", style="uppsala")
    fitted = Predictor.load(networks["binary"]).fit([each.image for each in lab])
    assert np.array_equal(named(lab[0].image).probabilities, fitted(lab[0].image).probabilities)
    with pytest.raises(InputError, match="graz"):
        Predictor.load(networks["binary"], model=tmp_path / "styles.safetensors", style="graz")


def test_a_model_of_another_reference_stain_is_refused(networks: dict[str, Path], tmp_path: Path) -> None:
    prior = read_weights(PRIOR)
    arrays = {**prior.arrays, "reference.stains": prior.arrays["reference.stains"] * 0.9}
    other = tmp_path / "other.safetensors"
    write_weights(ModelWeights(prior.document, arrays), other)
    with pytest.raises(InputError, match=r"a different model .* the federation's styles\.safetensors with --model"):
        Predictor.load(networks["binary"], model=other)


def test_the_temperature_softens_and_changes_no_class(networks: dict[str, Path], lab: list[Labeled]) -> None:
    built, said = load_network(networks["plain"])
    predictor = Predictor(built, said, PRIOR)
    with torch.no_grad():
        logits = built(torch.from_numpy(lab[0].image.copy()).permute(2, 0, 1)[None] / 255)[0]
    found = predictor(lab[0].image)
    torch.testing.assert_close(torch.from_numpy(found.probabilities), torch.softmax(logits / 1.7, 0))
    assert np.array_equal(found.classes, logits.argmax(0).numpy())


def test_a_network_that_takes_images_as_they_are_wants_no_style(networks: dict[str, Path]) -> None:
    for given in ({"style": "x"}, {"model": PRIOR}):
        with pytest.raises(InputError, match="takes images in any stain"):
            Predictor.load(networks["plain"], **given)  # type: ignore[arg-type]
    plain = Predictor.load(networks["plain"])
    assert plain.fit(np.zeros((8, 8, 3), np.uint8)) is plain


def test_a_foreign_factory_must_be_allowed(
    save_as: Callable[[Path, NetworkConfig, Task], Path], tmp_path: Path
) -> None:
    factory = "torch.nn:Conv2d"
    theirs = NetworkConfig(factory=factory, arguments={"in_channels": 3, "out_channels": 2, "kernel_size": 1})
    path = save_as(tmp_path / "theirs.safetensors", theirs, Task())
    with pytest.raises(ModelFileError, match=f"{factory} is not allowed here; if you trust it, allow it with --allow"):
        Predictor.load(path)
    image = np.full((5, 7, 3), 99, np.uint8)
    assert Predictor.load(path, allowed=[factory])(image).classes.shape == (5, 7)


def test_patches_have_one_class_each(networks: dict[str, Path], lab: list[Labeled]) -> None:
    found = Predictor.load(networks["patches"])(lab[0].image)
    assert found.probabilities.shape == (2,)
    assert found.classes.shape == ()


def test_what_is_no_image_is_refused(predictor: Predictor) -> None:
    with pytest.raises(InputError, match="an image must be"):
        predictor(np.zeros((4, 4), np.uint8))


def test_it_is_a_public_name() -> None:
    assert bottlegan.Predictor is Predictor
