from collections.abc import Iterator

import pytest

from bottlegan.cli.progress import end_bars


@pytest.fixture(autouse=True)
def _bars_end() -> Iterator[None]:
    """End the bars of commands that failed, which would print when they are cleared up: perhaps in another test."""
    yield
    end_bars()
