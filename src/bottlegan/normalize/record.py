"""A diagnosis in the record of a normalizer's file."""

import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from bottlegan.core.errors import ModelFileError
from bottlegan.models.document import Record
from bottlegan.onboarding.verdict import StyleDiagnosis, Verdict

FIGURES = tuple(entry.name for entry in fields(StyleDiagnosis) if entry.name not in ("verdict", "reason"))
RECORDED = frozenset(("style", "forced", "verdict", "reason", *FIGURES))
"""Keys that a normalizer's file adds to the training record of its model."""


def write_diagnosis(diagnosis: StyleDiagnosis) -> dict[str, str | int | float]:
    """Return a diagnosis in the form of a model file's record. Infinity, which JSON lacks, becomes a word."""
    figures = {name: getattr(diagnosis, name) for name in FIGURES}
    finite = {name: value if math.isfinite(value) else str(value) for name, value in figures.items()}
    return {"verdict": diagnosis.verdict.value, "reason": diagnosis.reason, **finite}


def read_diagnosis(record: Mapping[str, str | int | float], path: Path) -> StyleDiagnosis:
    """Return the diagnosis in the record of the model file `path`."""
    try:
        figures = {name: float(record[name]) for name in FIGURES}
        return StyleDiagnosis(Verdict(str(record["verdict"])), str(record["reason"]), **figures)
    except (KeyError, ValueError) as error:
        raise ModelFileError(f"{path}: its diagnosis cannot be read ({error}); fit the style again") from None


def forget_diagnosis(record: Record) -> dict[str, str | int | float]:
    """Return a record without the diagnosis of the last fitted style."""
    return {key: value for key, value in record.items() if key not in RECORDED}
