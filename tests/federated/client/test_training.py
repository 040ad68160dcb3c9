from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from bottlegan.core.errors import ConfigError, InputError
from bottlegan.data.labels import Labeled
from bottlegan.federated.client import training
from bottlegan.federated.client.staining import Staining, Styles, stain_with
from bottlegan.federated.client.training import Lab, learning_rate, score_lab
from bottlegan.federated.protocol.phase2 import Phase2Config, count_examples, initial_weights
from bottlegan.imaging.files import Pixels
from bottlegan.metrics.tally import compute_scores
from bottlegan.models.files import to_weights
from bottlegan.models.networks import Weights
from bottlegan.models.paradigms import BottleGAN
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.training.adam import Adam
from bottlegan.training.task import lay_out


def train_round(lab: Lab, weights: Weights, config: Phase2Config, number: int, seed: int) -> Weights:
    return training.train_round(lab, weights, config, number, seed).weights


def stain(config: Phase2Config, model: BottleGAN | None, own: str) -> Staining:
    return stain_with(config, None if model is None else Styles(to_weights(model)), own)


def error(found: Sequence[Labeled], wanted: Sequence[Labeled]) -> float:
    pairs = zip(found, wanted, strict=True)
    return float(np.mean([np.square((a.image / 255.0) - (b.image / 255.0)).mean() for a, b in pairs]))


def distance(a: Weights, b: Weights) -> float:
    return float(sum((a[name] - b[name]).square().sum() for name in a)) ** 0.5


def equal(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("own", ["dark", "pale"])
def test_each_lab_is_normalized_by_its_own_normalizer(
    own: str, dark: list[Labeled], pale: list[Labeled], truth: list[Labeled], styles: BottleGAN, tiny: Phase2Config
) -> None:
    config = replace(tiny, mode="normalize")
    images, other = (dark, "pale") if own == "dark" else (pale, "dark")
    right = Lab(own, images, [each.image for each in images], images, stain(config, styles, own))
    wrong = Lab(own, images, [], images, stain(config, styles, other))
    for part in (right.labeled, right.test, [Labeled(image, images[0].truth) for image in right.unlabeled]):
        assert error(part, truth) < 0.3 * error(images, truth)
        assert error(part, truth) < 0.1 * error(wrong.test, truth)


def test_opposite_styles_come_to_the_same_images(
    dark: list[Labeled], pale: list[Labeled], styles: BottleGAN, tiny: Phase2Config
) -> None:
    config = replace(tiny, mode="normalize")
    labs = [Lab(n, each, [], each, stain(config, styles, n)) for n, each in (("dark", dark), ("pale", pale))]
    assert error(labs[0].labeled, labs[1].labeled) < 0.05 * error(dark, pale)


def test_restaining_shows_the_styles_of_all_labs_and_predicts_on_images_as_they_are(
    pale: list[Labeled], styles: BottleGAN, tiny: Phase2Config
) -> None:
    staining = stain(replace(tiny, mode="restain"), styles, "pale")
    lab = Lab("pale", pale, [], pale, staining)
    assert error(lab.test, pale) == 0
    assert error(lab.labeled, pale) > 0.001
    crops = np.stack([lab.labeled[0].image] * 24)
    varied = staining.vary(crops, np.random.default_rng(0))
    expected = [Normalizer.from_model(styles, name).restain(crops[0]) for name in ("dark", "pale")]
    seen = [next(row for row, each in enumerate(expected) if np.array_equal(each, crop)) for crop in varied]
    assert set(seen) == {0, 1}
    assert np.array_equal(crops[0], lab.labeled[0].image)


def test_a_share_of_the_crops_is_restained(pale: list[Labeled], styles: BottleGAN, tiny: Phase2Config) -> None:
    vary = stain(replace(tiny, mode="normalize", restained=0.5), styles, "pale").vary
    crops = np.stack([pale[0].image[:32, :32]] * 60)
    changed = (vary(crops, np.random.default_rng(1)) != crops).any(axis=(1, 2, 3)).mean()
    assert 0.3 < changed < 0.7


def test_without_styles_only_plain_is_possible(tiny: Phase2Config) -> None:
    assert stain(tiny, None, "a") == Staining()
    with pytest.raises(InputError, match="needs the styles of phase 1"):
        stain(replace(tiny, mode="restain"), None, "a")


@pytest.mark.parametrize("mode", ["plain", "normalize", "restain"])
def test_a_round_depends_on_its_seed_number_and_lab_alone(
    mode: str, dark: list[Labeled], styles: BottleGAN, tiny: Phase2Config
) -> None:
    config = replace(tiny, mode=mode)
    start = initial_weights(config, 0)
    lab = Lab("dark", dark, [], [], stain(config, styles, "dark"))
    first = train_round(lab, start, config, 1, 0)
    torch.manual_seed(99)
    train_round(Lab("pale", dark, [], []), start, config, 2, 0)
    assert equal(first, train_round(lab, start, config, 1, 0))
    others = [(2, 0, "dark"), (1, 1, "dark"), (1, 0, "pale")]
    for number, seed, name in others:
        assert not equal(first, train_round(replace(lab, name=name), start, config, number, seed))
    assert equal(start, initial_weights(config, 0))


def test_no_optimizer_outlives_a_round(
    dark: list[Labeled], tiny: Phase2Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Adam] = []

    class Counted(Adam):
        def __init__(self, parameters: Iterable[Tensor], learning_rate: float) -> None:
            super().__init__(parameters, learning_rate)
            made.append(self)

    monkeypatch.setattr(training, "Adam", Counted)
    lab, start = Lab("a", dark, [], []), initial_weights(tiny, 0)
    for number in (1, 2):
        train_round(lab, start, tiny, number, 0)
    assert [each._steps[0].item() for each in made] == [tiny.training.steps] * 2


def test_local_rounds_are_rounds_without_averaging(dark: list[Labeled], tiny: Phase2Config) -> None:
    lab, start = Lab("a", dark, [], []), initial_weights(tiny, 0)
    once = training.train_message(lab, start, tiny, 2, 0)
    assert equal(once.weights, train_round(lab, start, tiny, 2, 0))
    both = training.train_message(lab, start, replace(tiny, rounds=2, local_rounds=2), 2, 0)
    third = training.train_round(lab, start, tiny, 3, 0)
    fourth = training.train_round(lab, third.weights, tiny, 4, 0)
    assert equal(both.weights, fourth.weights)
    assert both.loss == pytest.approx((third.loss + fourth.loss) / 2)


def test_fedprox_pulls_toward_the_start(dark: list[Labeled], tiny: Phase2Config) -> None:
    config = replace(tiny, training=replace(tiny.training, steps=12))
    lab, start = Lab("a", dark, [], []), initial_weights(tiny, 0)
    free, pulled = (train_round(lab, start, replace(config, proximal=mu), 1, 0) for mu in (0.0, 100.0))
    assert 0 < distance(pulled, start) < 0.7 * distance(free, start)


def test_fixmatch_trains_a_lab_without_labels(dark: list[Labeled], sure: Phase2Config, tiny: Phase2Config) -> None:
    lab = Lab("a", [], [each.image for each in dark], [])
    assert count_examples(sure, 0, 4, 1) == 4
    assert count_examples(tiny, 0, 4, 1) == 0
    later = replace(sure, fixmatch=replace(sure.fixmatch, warm_up=0.5))
    assert [count_examples(later, 0, 4, number) for number in (1, 2, 3, 4)] == [0, 0, 4, 4]
    half = replace(sure, fixmatch=replace(sure.fixmatch, weight=0.5))
    assert count_examples(half, 0, 5, 1) == 3, "an unlabeled image then counts for half of a labeled one"
    start = initial_weights(sure, 0)
    assert distance(train_round(lab, start, sure, 1, 0), start) > 0
    with pytest.raises(InputError, match="a has nothing to train on"):
        train_round(lab, start, tiny, 1, 0)


def test_a_lab_with_labels_learns_from_both(dark: list[Labeled], sure: Phase2Config, tiny: Phase2Config) -> None:
    assert count_examples(sure, 3, 4, 1) == 7
    assert count_examples(tiny, 3, 4, 1) == 3
    start, images = initial_weights(sure, 0), [each.image for each in dark]
    labels_only = training.train_round(Lab("a", dark, [], []), start, sure, 1, 0).loss
    both = training.train_round(Lab("a", dark, images, []), start, sure, 1, 0).loss
    # The labeled crops are drawn first, so they are the same. FixMatch's loss is added with its weight.
    twice = replace(sure, fixmatch=replace(sure.fixmatch, weight=2.0))
    doubled = training.train_round(Lab("a", dark, images, []), start, twice, 1, 0).loss
    assert both > labels_only
    assert doubled - labels_only == pytest.approx(2 * (both - labels_only), rel=1e-4)
    later = replace(sure, fixmatch=replace(sure.fixmatch, warm_up=0.5))
    assert training.train_round(Lab("a", dark, images, []), start, later, 1, 0).loss == labels_only


def test_the_loss_of_a_round_is_the_mean_of_its_steps(dark: list[Labeled], tiny: Phase2Config) -> None:
    lab, start = Lab("a", dark, [], []), initial_weights(tiny, 0)
    once = training.train_round(lab, start, tiny, 1, 0).loss
    twice = training.train_round(lab, start, replace(tiny, training=replace(tiny.training, steps=2)), 1, 0).loss
    assert once > 0
    # The first of the two steps is the same. The second sees other crops with other weights.
    assert twice != once
    assert 2 * twice - once > 0
    # FedProx's term measures the distance, not how well the network fits.
    assert training.train_round(lab, start, replace(tiny, proximal=1e6), 1, 0).loss == once


def test_training_learns(truth: list[Labeled], tiny: Phase2Config) -> None:
    config = replace(tiny, training=replace(tiny.training, steps=60, batch=4, crop=64))
    lab, start = Lab("a", truth, [], truth), initial_weights(tiny, 0)
    before, after = (
        compute_scores(score_lab(lab, w, config), lay_out(config.task), config.task.classes)
        for w in (start, train_round(lab, start, config, 1, 0))
    )
    assert after["nll"] < 0.8 * before["nll"]


def test_a_lab_without_test_images_counts_nothing(dark: list[Labeled], tiny: Phase2Config) -> None:
    assert score_lab(Lab("a", dark, [], []), initial_weights(tiny, 0), tiny).tolist() == [0] * lay_out(tiny.task).size


def test_images_are_prepared_once(dark: list[Labeled], tiny: Phase2Config) -> None:
    seen: list[Pixels] = []

    def prepare(image: Pixels) -> Pixels:
        seen.append(image)
        return image

    lab = Lab("a", dark, [], [], Staining(prepare=prepare))
    for number in (1, 2):
        train_round(lab, initial_weights(tiny, 0), tiny, number, 0)
    assert len(seen) == len(dark)


def test_the_learning_rate_falls_along_a_cosine() -> None:
    config = Phase2Config(rounds=4)
    rates = [learning_rate(config, number) / config.training.learning_rate for number in (1, 3, 4)]
    assert rates == pytest.approx([1, 0.5, (1 - 0.5**0.5) / 2])


@pytest.mark.parametrize("values", [{"rounds": 0}, {"local_rounds": 0}, {"proximal": -1.0}, {"restained": 1.5}])
def test_impossible_numbers_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="rounds and local_rounds must be at least 1"):
        Phase2Config(**values)  # type: ignore[arg-type]
