"""The fuzz campaign finds what it looks for, and a few dozen of its cases pass."""

from pathlib import Path

import pytest

from bottlegan.bench.fuzz import find_faults, run_campaign, summarize
from bottlegan.bench.fuzz_cases import FAMILIES, draw_cases, make_sandbox

CASES = 40


@pytest.mark.slow
def test_whatever_is_typed_a_command_ends_as_it_should() -> None:
    figures = summarize(run_campaign(CASES))
    assert figures["faults"] == []
    assert figures["cases"] == CASES


def test_the_same_seed_draws_the_same_cases_of_all_families() -> None:
    first, again, other = ([str(case) for case in draw_cases(50, seed)] for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert {case.family for case in draw_cases(50)} == set(FAMILIES)


def test_a_campaign_in_parts_draws_the_same_cases() -> None:
    whole = [str(case) for case in draw_cases(30)]
    assert whole == [str(case) for first in (0, 20) for case in draw_cases(20 if first == 0 else 10, first=first)]


@pytest.mark.parametrize(
    ("status", "printed", "text", "after", "fault"),
    [
        (0, "", "", {"in": "1", "out": "2"}, None),
        (2, "", "bottlegan: in: is no image; give one\n", {"in": "1"}, None),
        (2, "1 of 2 images are in out.", "bottlegan: a: is damaged\n", {"in": "1", "out/b": "2"}, None),
        (None, "", "", {"in": "1"}, "hangs"),
        (1, "", "Traceback (most recent call last):\n", {"in": "1"}, "traceback"),
        (-9, "", "bottlegan: x\n", {"in": "1"}, "status -9"),
        (2, "", "", {"in": "1"}, "no reason"),
        (2, "", "bottlegan: a\n" * 4, {"in": "1"}, "4 lines"),
        (0, "", "\x1b[2Kmapping 1/2 left \x1b[36m0:00:01\x1b[0m\n" * 4, {"in": "1"}, None),
        (2, "", "bottlegan: a\n", {"in": "1", ".x": "2"}, "temporary"),
        (2, "", "bottlegan: a\n", {"in": "1", "out": "2"}, "left"),
        (0, "", "", {"in": "2"}, "changed"),
        (0, "", "", {}, "changed"),
    ],
)
def test_what_is_wrong_with_an_ending(
    status: int | None, printed: str, text: str, after: dict[str, str], fault: str | None
) -> None:
    faults = find_faults(status, printed, text, {"in": "1"}, after)
    assert (fault in faults[0]) if fault else not faults


def test_the_sandbox_has_one_of_everything(tmp_path: Path) -> None:
    make_sandbox(tmp_path)
    assert {"lab", "truth", "model.safetensors", "train.toml", "log.jsonl", "table.cube"} <= {
        p.name for p in tmp_path.iterdir()
    }
