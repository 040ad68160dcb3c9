"""Times from the log of a federation."""

import json
from itertools import pairwise
from pathlib import Path
from statistics import median

from bottlegan.federated.server.folder import LOG


def time_rounds(folder: Path) -> float:
    """Return the median seconds between rounds in a run's log, without the last round, which is scored."""
    lines = [json.loads(line) for line in (folder / LOG).read_text(encoding="utf-8").splitlines()]
    ends = [line["time"] for line in lines if line["kind"] == "round"]
    return median(after - before for before, after in pairwise(ends[:-1]))
