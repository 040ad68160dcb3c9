from pathlib import Path

import pytest

from bottlegan.federated.client import style
from bottlegan.reproduce.phase1 import Trial, run_trial


def test_each_lab_trains_once_and_both_models_are_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, trained = style.train, []

    def stop_at_the_second(labs, *arguments, **options):
        if len(trained) == 1:
            raise KeyboardInterrupt
        trained.append(labs)
        return train(labs, *arguments, **options)

    trial = Trial("smoke", "wide", "adversarial", 2, tmp_path)
    monkeypatch.setattr(style, "train", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        run_trial(trial)
    monkeypatch.setattr(style, "train", train)
    page = run_trial(trial).read_text()
    lines = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in page.splitlines() if " | " in line}
    assert {"lab-01", "lab-02", "mean", "median"} <= lines.keys()
    nothing, own, *_ = (float(cell) for cell in lines["lab-01"][:5])
    assert nothing > 0
    assert own != nothing, "two steps change something"


def test_codes_have_no_model_of_the_labs_own(tmp_path: Path) -> None:
    page = run_trial(Trial("smoke", "mixtures", "code", 2, tmp_path)).read_text()
    mean = next(line for line in page.splitlines() if line.startswith("| mean"))
    nothing, own, _, normalize = mean.split(" | ")[1:5]
    assert own == "-"
    assert float(normalize) < 0.5 * float(nothing)
