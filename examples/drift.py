"""Drift over months.

A lab keeps a folder of images for each month. From July on its eosin is 40 % weaker. The first four months say how
much the stain varies while nothing is wrong; months beyond that limit are marked. `drift.html` shows a chart and
the colors.
"""

import json
from dataclasses import replace
from pathlib import Path

from bottlegan.cli.main import app
from bottlegan.simulation.lab_folder import draw_lab, write_lab

if __name__ == "__main__":
    work = Path("example-output/drift")
    months = work / "months"  # put your own folders here, named by date
    steady = draw_lab(3)
    weak = replace(steady, eosin=tuple(0.6 * density for density in steady.eosin))
    if not months.exists():
        months.mkdir(parents=True)
        for month in range(1, 9):
            style = weak if month >= 7 else steady
            write_lab(months / f"2026-{month:02d}", patches=6, size=192, seed=month, style=style)

    # In a shell: bottlegan drift months/ --style our-lab --baseline 4 --out report/
    app(
        ["drift", f"{months}", "--style", "our-lab", "--baseline", "4", "--out", f"{work}/report"],
        standalone_mode=False,
    )
    print("drifted:", json.loads((work / "report" / "drift.json").read_text(encoding="utf-8"))["drifted"])
