"""All slides at a glance: what is known of each so far, those first that need a look."""

import math
from collections.abc import Sequence

from bottlegan.core.progress import Json
from bottlegan.viewer.shown import Finding, ShownSlide

ORDER = {"refused": 0, "uncertain": 1, "good": 2, "known": 3}
"""Verdicts as they are sorted; what has none yet comes last."""


def list_entries(slides: Sequence[ShownSlide]) -> list[dict[str, Json]]:
    """Return an entry for each slide: by verdict, then the largest expected error first, then by name."""
    found = [(slide.finding_so_far, slide.path.name, number) for number, slide in enumerate(slides)]
    entries: list[dict[str, Json]] = []
    for finding, name, number in sorted(found, key=lambda each: (*_rank(each[0]), each[1], each[2])):
        told: dict[str, Json] = {"verdict": "", "usable": False} if finding is None else finding.tell()
        entries.append({"slide": number, "name": name, **told})
    return entries


def _rank(finding: Finding | None) -> tuple[int, float]:
    if finding is None:
        return len(ORDER), 0.0
    error = finding.expected_error
    return ORDER[finding.verdict], 0.0 if error is None or not math.isfinite(error) else -error
