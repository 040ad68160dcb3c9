"""Stain drift as files: `drift.html` to read, `drift.csv` for spreadsheets, `drift.json` for programs."""

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path

from markupsafe import Markup

from bottlegan.core.files import make_folder, write_text
from bottlegan.core.progress import Json
from bottlegan.data.lab import MOST_IMAGES
from bottlegan.onboarding.verdict import Verdict
from bottlegan.quality.drift import JUST_VISIBLE, LEAST_BASELINE, THREE_SIGMA, Drift, Point
from bottlegan.quality.drift_chart import Level, Mark, draw_chart, draw_strip
from bottlegan.quality.report import Drawing, Table, write_report
from bottlegan.quality.style_map import Stain, draw_style_map

DATA = "drift.json"
KNOWN = "the model's style"
COLUMNS = (
    "batch",
    "images",
    "verdict",
    "in_baseline",
    "code_distance",
    "delta_e",
    "limit",
    "out_of_control",
)


def write_drift(drift: Drift, out: Path) -> Path:
    """Write all three files into the folder `out`, and return the path of the page."""
    make_folder(out)
    write_text(out / "drift.csv", to_csv(drift))
    write_text(out / DATA, json.dumps(to_json(drift), indent=2, allow_nan=False) + "\n")
    page = out / "drift.html"
    write_report(page, f"Stain drift: {drift.style}", say_lead(drift), list_sections(drift))
    return page


def to_csv(drift: Drift) -> str:
    """Return a line for each batch under the column names. Cells without a measurement are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for point in drift.points:
        batch, limit = point.batch, None if drift.limit is None else drift.limit.upper
        in_baseline, out_of_control = (str(flag).lower() for flag in (point.in_baseline, point.out_of_control))
        figures = (_number(value, 4) for value in (point.code_distance, point.delta_e, limit))
        writer.writerow((batch.name, batch.images, batch.verdict.value, in_baseline, *figures, out_of_control))
    return text.getvalue()


def to_json(drift: Drift) -> dict[str, Json]:
    """Return everything, in the form of a `DriftDocument`."""
    return {
        "style": drift.style,
        "compared_with": KNOWN if drift.known else "the mean of the baseline batches",
        "baseline": list[Json](drift.baseline),
        "drifted": list[Json](drift.drifted),
        "limit": None if drift.limit is None else asdict(drift.limit),
        "colors": drift.colors.tolist(),
        "batches": [
            {
                "batch": point.batch.name,
                "images": point.batch.images,
                "verdict": point.batch.verdict.value,
                "reason": point.batch.reason,
                "in_baseline": point.in_baseline,
                "code_distance": point.code_distance,
                "delta_e": point.delta_e,
                "out_of_control": point.out_of_control,
                "code": point.batch.code.tolist(),
                "colors": point.colors.tolist(),
            }
            for point in drift.points
        ],
    }


def say_result(drift: Drift) -> str:
    """Return in one sentence whether the stain drifted."""
    names = drift.drifted
    if drift.limit is None:
        return f"Distances only: a limit needs {LEAST_BASELINE} baseline batches, there are {len(drift.baseline)}."
    if not names:
        measured = sum(point.code_distance is not None for point in drift.points)
        return f"No drift found: all {measured} measured batches are within the limit."
    listed = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    return f"Drift found: {len(names)} of {len(drift.points)} batches out of control ({listed})."


def say_lead(drift: Drift) -> str:
    """Return the lead paragraph of the page."""
    source = "the model's own code of this style" if drift.known else f"the mean of {', '.join(drift.baseline)}"
    refused = [point.batch.name for point in drift.points if point.batch.verdict == Verdict.REFUSED]
    left_out = f" Refused, hence not measured and not part of the limit: {', '.join(refused)}." if refused else ""
    return f"{say_result(drift)} Batches are compared with {source}.{left_out}"


def list_sections(drift: Drift) -> list[Table | Drawing]:
    """Return all sections about a lab's stain over time."""
    code = [Mark(p.batch.name, p.code_distance, p.out_of_control, p.in_baseline) for p in drift.points]
    seen = [Mark(p.batch.name, p.delta_e, p.out_of_control, p.in_baseline) for p in drift.points]
    limit = drift.limit
    levels = [] if limit is None else [Level("limit", limit.upper, alarm=True), Level("baseline mean", limit.center)]
    # A cell may be a drawing: the page inserts markup unchanged, and escapes all other text.
    return [
        Table(
            "Distance of each batch from the baseline",
            "Distance between style codes: the root mean square of their difference. Codes have unit variance, so "
            "two unrelated styles are about 1.4 apart. Circles are batches; hollow circles belong to the baseline. "
            "Diamonds are batches out of control. A cross is a refused batch.",
            (),
            [(draw_chart(code, levels, "distance of each batch's code from the baseline's"),)],
        ),
        Table(
            "Visible difference",
            "Mean CIEDE2000 difference (ΔE) of mixtures of both stains, restained like the batch and the baseline.",
            (),
            [(draw_chart(seen, [Level("just visible", JUST_VISIBLE)], "color difference of each batch"),)],
        ),
        *_draw_way(drift),
        Table(
            "The stain of each batch",
            "Mixtures of both stains: eosin increases in steps from left to right, and hematoxylin within each step. "
            "The upper half is the baseline, the lower half the batch. If you see no edge between them, you would not "
            "see the drift either.",
            ("batch", "ΔE", "baseline above, batch below"),
            [_strip_row(drift, point) for point in drift.points],
        ),
        Table("The figures", _explain(drift), _HEADINGS, [_row(point) for point in drift.points]),
    ]


_HEADINGS = ("batch", "images", "code distance", "ΔE", "", "verdict", "what was found")


def _draw_way(drift: Drift) -> list[Drawing]:
    """Return the map of the batches' styles, in the order of time; nothing if there are fewer than two."""
    measured = [point for point in drift.points if point.code_distance is not None]
    if len(measured) < 2:
        return []
    stains = [
        Stain(point.batch.name, point.batch.code.numpy(), point.colors, point.out_of_control) for point in measured
    ]
    caption = (
        "Each batch is a swatch of its stain at the position of its style code, connected to the next batch. An orange "
        "frame marks a batch out of control. A steady lab stays in one place; drift is a path that leads away from it."
    )
    drawn = draw_style_map(stains, "map of the batches' styles", in_order=True)
    return [Drawing("Map of the batches' styles", caption, drawn)]


def _strip_row(drift: Drift, point: Point) -> tuple[str, str, str]:
    if point.delta_e is None:
        return point.batch.name, "", "refused"
    label = f"stain of {point.batch.name} below that of the baseline"
    return point.batch.name, _number(point.delta_e, 1), draw_strip(drift.colors, point.colors, label)


def _row(point: Point) -> tuple[str, ...]:
    batch, state = point.batch, "baseline" if point.in_baseline else ""
    if point.out_of_control:
        state = Markup("<strong>out of control</strong>")
    figures = (str(batch.images), _number(point.code_distance, 3), _number(point.delta_e, 2))
    return batch.name, *figures, state, batch.verdict.value, batch.reason


def _explain(drift: Drift) -> str:
    used = f"At most {MOST_IMAGES} images of a batch are used."
    if drift.limit is None:
        return f"{used} There is no limit, because that needs {LEAST_BASELINE} baseline batches."
    return (
        f"{used} The limit, {drift.limit.upper:.3f}, is that of a Shewhart chart of individual values: over the "
        f"{len(drift.baseline)} baseline batches, the mean distance plus {THREE_SIGMA} times the mean range between "
        "successive batches, which is three standard deviations. It allows for differences at a constant stain, such "
        "as other tissue and other patients. With three baseline batches the limit is rough, and about one batch in "
        "ten of a steady lab is beyond it; with five, one in twenty; with eight, one in a hundred."
    )


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
