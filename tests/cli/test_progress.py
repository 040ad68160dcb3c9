import gc

import pytest

from bottlegan.cli.progress import TerminalProgress, end_bars


def test_a_loop_that_is_left_shows_its_bar_as_done(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in TerminalProgress().track(range(9), "counting", 9):
        break
    gc.collect()
    assert "counting (stopped early)" in capsys.readouterr().err


def test_the_bar_of_a_loop_that_failed_ends_when_told_and_prints_nothing_later(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loop = TerminalProgress().track(range(9), "counting", 9)
    next(loop)
    end_bars()
    shown = capsys.readouterr().err
    assert "counting" in shown
    assert "stopped early" not in shown
    assert list(loop) == []
    del loop
    gc.collect()
    end_bars()
    assert capsys.readouterr().err == ""


def test_a_loop_that_is_done_or_was_not_begun_does_not_mind() -> None:
    progress = TerminalProgress()
    done, idle = progress.track([1], "done", 1), progress.track([1], "idle", 1)
    assert list(done) == [1]
    end_bars()
    assert list(idle) == []
