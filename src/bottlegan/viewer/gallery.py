"""All slides at a glance, with the findings so far. Slides that need attention come first."""

import math
from collections.abc import Sequence

from bottlegan.core.progress import Json
from bottlegan.viewer.shown import Finding, ShownSlide

ORDER = {"refused": 0, "uncertain": 1, "good": 2, "known": 3}
"""Sort order of the verdicts. Slides without a verdict come last."""


def list_entries(slides: Sequence[ShownSlide]) -> list[dict[str, Json]]:
    """Return an entry for each slide, sorted by verdict, then by decreasing expected error, then by name."""
    findings = [(slide.finding_so_far, slide.path.name, number) for number, slide in enumerate(slides)]
    entries: list[dict[str, Json]] = []
    for finding, name, number in sorted(findings, key=lambda entry: (*_rank(entry[0]), entry[1], entry[2])):
        shown: dict[str, Json] = {"verdict": "", "usable": False} if finding is None else finding.tell()
        entries.append({"slide": number, "name": name, **shown})
    return entries


def _rank(finding: Finding | None) -> tuple[int, float]:
    if finding is None:
        return len(ORDER), 0.0
    error = finding.expected_error
    return ORDER[finding.verdict], 0.0 if error is None or not math.isfinite(error) else -error
