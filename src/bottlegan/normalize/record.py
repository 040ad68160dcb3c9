"""A diagnosis in the record of a normalizer's file."""

import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from bottlegan.core.errors import ModelFileError
from bottlegan.models.document import Record
from bottlegan.onboarding.verdict import StyleDiagnosis, Verdict

FIGURES = tuple(each.name for each in fields(StyleDiagnosis) if each.name not in ("verdict", "reason"))
RECORDED = frozenset(("style", "forced", "verdict", "reason", *FIGURES))
"""What a normalizer's file says of its style, beside what the model's said of its training."""


def write_diagnosis(diagnosis: StyleDiagnosis) -> dict[str, str | int | float]:
    """Return a diagnosis as a model file's record can hold it: infinity, which JSON lacks, as a word."""
    figures = {name: getattr(diagnosis, name) for name in FIGURES}
    told = {name: value if math.isfinite(value) else str(value) for name, value in figures.items()}
    return {"verdict": diagnosis.verdict.value, "reason": diagnosis.reason, **told}


def read_diagnosis(record: Mapping[str, str | int | float], path: Path) -> StyleDiagnosis:
    """Return the diagnosis in the record of the model file `path`."""
    try:
        figures = {name: float(record[name]) for name in FIGURES}
        return StyleDiagnosis(Verdict(str(record["verdict"])), str(record["reason"]), **figures)
    except (KeyError, ValueError) as error:
        raise ModelFileError(f"{path}: its diagnosis cannot be read ({error}); fit the style again") from None


def forget_diagnosis(record: Record) -> dict[str, str | int | float]:
    """Return a record without what it says of the style that was fitted last."""
    return {key: value for key, value in record.items() if key not in RECORDED}
