from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bottlegan.core.config import load, parse, to_toml, to_values
from bottlegan.core.errors import InputError
from bottlegan.core.progress import Json, Silent
from bottlegan.core.seeding import numpy_stream
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.config import GeneratorConfig, ModelConfig, Paradigm
from bottlegan.models.critics import CriticConfig
from bottlegan.models.paradigms import StyleModel
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import PAPER, REFERENCE, draw_style
from bottlegan.training import gan
from bottlegan.training.gan import PRESETS, TrainConfig, advance, measure, prepare, start, train

TINY = TrainConfig(
    model=ModelConfig(code_size=8, generator=GeneratorConfig(width=8, depth=1, mapping=8)),
    critic=CriticConfig(width=4, depth=2),
    steps=6,
    warm_steps=3,
    batch=4,
    pixels=64,
    crop=32,
    crops=2,
    adversarial_weight=0.1,
    check_every=1,
)


class Recorder(Silent):
    def __init__(self) -> None:
        self.events: list[dict[str, Json]] = []

    def event(self, kind: str, **fields: Json) -> None:
        self.events.append(fields)


@pytest.fixture(scope="module")
def reference() -> list[Pixels]:
    return [from_batch(render(draw_tissue(5, i, 96).concentration[None], REFERENCE))[0] for i in range(6)]


@pytest.fixture(scope="module")
def labs() -> dict[str, list[Pixels]]:
    styles = [draw_style(numpy_stream(0, "style", k), f"lab-{k}", PAPER) for k in range(3)]
    return {
        style.name: [from_batch(render(draw_tissue(6, 2 * k + i, 96).concentration[None], style))[0] for i in range(2)]
        for k, style in enumerate(styles)
    }


def weights(model: StyleModel) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}


def test_every_preset_and_a_config_file_hold_valid_settings(tmp_path: Path) -> None:
    for preset in PRESETS.values():
        assert parse(TrainConfig, to_values(preset), "preset") == preset
    (tmp_path / "train.toml").write_text(to_toml(TINY))
    assert load(TrainConfig, tmp_path / "train.toml") == TINY


@pytest.mark.parametrize("paradigm", ["many-one-many", "many-many", "many-one", "many-one-one"])
@pytest.mark.parametrize("kind", ["pixel", "unet"])
def test_every_paradigm_and_generator_trains(
    paradigm: Paradigm, kind: str, labs: dict[str, list[Pixels]], reference: list[Pixels]
) -> None:
    generator = replace(TINY.model.generator, kind=kind)
    config = replace(TINY, model=replace(TINY.model, paradigm=paradigm, generator=generator), identity_weight=1.0)
    recorder = Recorder()
    model = train(labs, reference, config, progress=recorder)
    assert model.codes.names == list(labs)
    assert len(recorder.events) == config.steps
    assert {"cycle", "identity", "adversarial", "held_out"} <= recorder.events[-1].keys()
    with torch.no_grad():
        output = model.normalize(to_batch(labs["lab-0"][0]), model.codes["lab-0"])
    assert output.shape == (1, 3, 96, 96)
    assert output.isfinite().all()


@pytest.mark.parametrize("form", ["wasserstein", "lsgan", "hinge"])
def test_one_step_moves_generators_codes_and_both_critics(
    form: str, labs: dict[str, list[Pixels]], reference: list[Pixels]
) -> None:
    config = replace(TINY, adversarial=form, warm_steps=0)
    setting = prepare(labs, reference, config, 0, device=torch.device("cpu"), progress=Silent())
    run = start(list(labs), setting)
    parts = {"model": run.model, "critics": run.critics}
    before = {label: {n: p.detach().clone() for n, p in part.named_parameters()} for label, part in parts.items()}
    for step in range(3):
        advance(run, setting, step)
    for label, part in parts.items():
        for name, parameter in part.named_parameters():
            if label == "critics" and name.endswith(("mix.bias", "last.bias")):
                continue  # these shift the scores of all images equally, so their gradients may cancel out
            assert not torch.equal(parameter, before[label][name]), f"{label}.{name} did not move"


def test_training_lowers_its_losses_and_the_held_out_criterion(
    labs: dict[str, list[Pixels]], reference: list[Pixels]
) -> None:
    # A model that does not begin at the closed-form maps but has to learn them.
    model = replace(TINY.model, paradigm="many-one")
    config = replace(TINY, model=model, steps=200, warm_steps=200, pixels=256, check_every=1000)
    setting = prepare(labs, reference, config, 0, device=torch.device("cpu"), progress=Silent())
    run = start(list(labs), setting)
    at_first = measure(run.model, setting)
    losses = [advance(run, setting, step) for step in range(config.steps)]
    for name in ("normalize", "restain"):
        assert np.mean([loss[name] for loss in losses[-20:]]) < 0.2 * np.mean([loss[name] for loss in losses[:5]])
    assert measure(run.model, setting) < 0.7 * at_first


def test_the_same_seed_gives_the_same_bytes(labs: dict[str, list[Pixels]], reference: list[Pixels]) -> None:
    first, again, other = (train(labs, reference, TINY, seed) for seed in (1, 1, 2))
    assert weights(first) == weights(again)
    assert weights(first) != weights(other)


@pytest.fixture(scope="module")
def whole(labs: dict[str, list[Pixels]], reference: list[Pixels]) -> dict[str, bytes]:
    """The weights after an uninterrupted run."""
    return weights(train(labs, reference, TINY))


@pytest.mark.parametrize("stopped_after", [2, 4])
def test_a_resumed_run_ends_as_an_uninterrupted_one(
    stopped_after: int,
    whole: dict[str, bytes],
    labs: dict[str, list[Pixels]],
    reference: list[Pixels],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = gan.advance

    def interrupted(run: gan.TrainingRun, setting: gan.TrainingInputs, step: int) -> dict[str, float]:
        if step == stopped_after:
            raise KeyboardInterrupt
        return plain(run, setting, step)

    monkeypatch.setattr(gan, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(labs, reference, TINY, checkpoint=tmp_path / "run.checkpoint")
    steps: list[int] = []
    monkeypatch.setattr(gan, "advance", lambda run, setting, step: (steps.append(step), plain(run, setting, step))[1])
    resumed = train(labs, reference, TINY, checkpoint=tmp_path / "run.checkpoint")
    assert steps[0] == stopped_after
    assert weights(resumed) == whole


def test_a_checkpoint_of_another_run_is_refused(
    labs: dict[str, list[Pixels]], reference: list[Pixels], tmp_path: Path
) -> None:
    path = tmp_path / "run.checkpoint"
    train(labs, reference, TINY, checkpoint=path)
    with pytest.raises(InputError, match="another configuration or seed"):
        train(labs, reference, TINY, seed=9, checkpoint=path)
    with pytest.raises(InputError, match="another configuration or seed"):
        train(labs, reference, replace(TINY, batch=3), checkpoint=path)
    with pytest.raises(InputError, match="other styles or images"):
        train({**labs, "more": labs["lab-0"]}, reference, TINY, checkpoint=path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="is not a checkpoint"):
        train(labs, reference, TINY, checkpoint=path)


def test_the_best_model_is_returned_and_training_stops_when_it_gets_no_better(
    labs: dict[str, list[Pixels]], reference: list[Pixels], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([9.0, 9.0, 5.0, 2.0, 3.0, 3.0, 3.0, 1.0])
    seen: list[dict[str, bytes]] = []

    def scripted(model: StyleModel, setting: gan.TrainingInputs) -> float:
        seen.append(weights(model))
        return next(scores)

    monkeypatch.setattr(gan, "measure", scripted)
    model = train(labs, reference, replace(TINY, steps=8, patience=3))
    assert len(seen) == 7, "three looks without improvement end it"
    assert weights(model) == seen[3]


def test_images_smaller_than_a_crop_are_refused(labs: dict[str, list[Pixels]], reference: list[Pixels]) -> None:
    with pytest.raises(InputError, match="tiny is 20 x 20 px, smaller than a crop of 32 px"):
        train({"tiny": [labs["lab-0"][0][:20, :20]]}, reference, TINY)
