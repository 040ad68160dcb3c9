from dataclasses import replace

import pytest
import torch

from bottlegan.core.config import parse, to_values
from bottlegan.core.errors import ConfigError
from bottlegan.core.progress import Silent
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.critics import CriticConfig
from bottlegan.models.paradigms import build_model
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES, REFERENCE
from bottlegan.training.adversarial import LAB, SERVER, AdversarialConfig
from bottlegan.training.gan import TrainConfig, advance, prepare, start, train
from bottlegan.training.prior import PriorConfig

LAB_STYLE = LABORATORIES[6]
"""The darkest of the nine laboratories."""


def draw(first: int, count: int) -> torch.Tensor:
    return torch.stack([draw_tissue(21, first + index, 128).concentration for index in range(count)])


@pytest.fixture(scope="module")
def images() -> list[Pixels]:
    return from_batch(render(draw(0, 6), LAB_STYLE))


@pytest.fixture(scope="module")
def reference_set() -> list[Pixels]:
    return from_batch(render(draw(20, 8), REFERENCE))


def error(config: TrainConfig, images: list[Pixels], reference_set: list[Pixels]) -> float:
    """Return the mean squared error of normalizing held-out tissue, relative to doing nothing."""
    model = train({"client": images}, reference_set, config)
    tissue = draw(40, 2)
    styled, truth = render(tissue, LAB_STYLE), render(tissue, REFERENCE)
    with torch.no_grad():
        found = model.normalize(styled, model.codes["client"])
    return float((found - truth).square().mean() / (styled - truth).square().mean())


def test_critics_lower_the_error_where_the_cycle_alone_does_not(
    images: list[Pixels], reference_set: list[Pixels]
) -> None:
    config = replace(
        LAB["cpu"],
        model=ModelConfig(code_size=4, generator=GeneratorConfig(depth=0)),
        critic=CriticConfig(width=8, depth=2),
        steps=150,
        rate=1e-2,
        critic_rate=3e-3,
        batch=4,
        pixels=128,
        crop=32,
        crops=16,
        select="last",
    )
    with_critics = error(config, images, reference_set)
    cycle_alone = error(replace(config, adversarial_weight=0.0), images, reference_set)
    assert cycle_alone > 0.8, "the cycle holds nothing against doing nothing"
    assert with_critics < 0.5


def test_presets_are_as_published_and_begin_cold() -> None:
    for preset in (*LAB.values(), *SERVER.values()):
        assert parse(TrainConfig, to_values(preset), "preset") == preset
        assert preset.warm_steps == 0, "a warm start would be onboarding's work, not the critics'"
        assert preset.adversarial_weight > 0
    assert LAB["cpu"].model == SERVER["cpu"].model == PriorConfig().model, "hidden layers err many times as far"
    lab, server = LAB["paper"], SERVER["paper"]
    assert (lab.steps, server.steps, lab.rate, server.rate) == (166, 666, 1e-3, 1e-3)
    assert (lab.crops, lab.crop, lab.adversarial, lab.code_noise) == (36, 114, "linear", 0.01)
    assert (lab.cycle_weight, lab.identity_weight, lab.adversarial_weight) == (1000, 1000, 1)
    model = build_model(lab.model, ["client"], torch.Generator())
    convolutions = [p for name, p in model.named_parameters() if "normalizer" in name and "convolution" in name]
    assert sum(p.numel() for p in convolutions) == 50_435


def test_the_published_setting_takes_a_step(images: list[Pixels], reference_set: list[Pixels]) -> None:
    config = replace(LAB["paper"], crop=32, crops=2, critic=CriticConfig(width=64, depth=3, published=True))
    setting = prepare({"client": images}, reference_set, config, 0, device=torch.device("cpu"), progress=Silent())
    run = start(["client"], setting)
    before = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    losses = advance(run, setting, 0)
    assert losses.keys() == {"cycle", "identity", "adversarial"}
    assert abs(losses["adversarial"]) < 0.02 * (losses["cycle"] + losses["identity"]), "as published, it hardly counts"
    assert all(not torch.equal(p, before[name]) for name, p in run.model.named_parameters())
    output = run.model.normalize(to_batch(images[0]), run.model.codes["client"])
    assert output.shape == (1, 3, 128, 128)


def test_steps_can_be_given_and_pairs_need_no_critics() -> None:
    config = AdversarialConfig(steps=7, server_steps=9)
    assert (config.lab.steps, config.server.train.steps, config.server.adversarial) == (7, 9, True)
    assert AdversarialConfig().lab == LAB["cpu"]
    assert not AdversarialConfig(paired=True).server.adversarial
    with pytest.raises(ConfigError, match="at least 0"):
        AdversarialConfig(steps=-1)
