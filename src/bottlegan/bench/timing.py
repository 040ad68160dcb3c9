"""Times from the log of a federation."""

from itertools import pairwise
from pathlib import Path
from statistics import median

from bottlegan.federated.server.folder import LOG
from bottlegan.quality.run_report import read_events


def time_rounds(folder: Path) -> float:
    """Return the median seconds between rounds in a run's log, without the last round, which is scored."""
    ends = [event["time"] for event in read_events(folder / LOG) if event["kind"] == "round"]
    return median(after - before for before, after in pairwise(ends[:-1]))
