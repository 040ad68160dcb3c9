import numpy as np
import pytest

from bottlegan.bench import typical
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.document import PRIOR
from bottlegan.models.weights import read_weights
from bottlegan.onboarding.fit import look_at_lab
from bottlegan.onboarding.settle import TYPICAL
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES


def test_the_constants_are_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(typical, "BATCHES", 1)
    monkeypatch.setattr(typical, "BATCH", 12)
    monkeypatch.setattr("bottlegan.simulation.lab.TISSUES", 8)
    monkeypatch.setattr("sys.argv", ["typical"])
    typical.main()
    printed = capsys.readouterr().out
    for name in ("USUAL_ERROR", "TYPICAL", "VARIATION", "GOOD_ERROR", "probability of H&E"):
        assert name in printed


def test_classes_are_read_as_the_reference_stain_has_them() -> None:
    encoders = read_weights(PRIOR).encoders
    concentration = draw_tissue(seed=4, index=1, size=256).concentration[None]
    look = look_at_lab(from_batch(render(concentration, LABORATORIES[4])), encoders)
    classes = typical.read_classes(look, encoders[0]["basis"])
    assert classes is not None
    assert np.abs(classes - TYPICAL).max() < 0.25
    assert classes[0, 0] > 2 * classes[1, 0], "nuclei hold the hematoxylin"


def test_where_all_is_glass_no_classes_are_read() -> None:
    encoders = read_weights(PRIOR).encoders
    look = look_at_lab([np.full((64, 64, 3), 250, np.uint8)], encoders)
    assert typical.read_classes(look, encoders[0]["basis"]) is None
