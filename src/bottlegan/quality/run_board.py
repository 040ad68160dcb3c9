"""A running federation at a glance: curves, the states and stains of labs, and which labs were left out and why."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bottlegan.federated.server.folder import STYLES, WAITING
from bottlegan.federated.server.history import RoundRecord
from bottlegan.models.paradigms import BottleGAN
from bottlegan.quality.drift import mix_colors, to_picture
from bottlegan.quality.report import Drawing, Table
from bottlegan.quality.run_report import RunState, draw_run, list_labs, list_tables
from bottlegan.quality.style_map import Stain, draw_style_map, draw_swatch, find_nearest, place_styles


def list_board(run: RunState, stains: Sequence[Stain]) -> list[Table | Drawing]:
    """Return all sections about a run, the most important first."""
    troubled = {name for name in run.members.clients if is_trouble(tell_state(run, name))}
    marked = [replace(stain, alarm=stain.name in troubled) for stain in stains]
    sections: list[Table | Drawing] = [draw_run(run)] if run.history.rounds else []
    if run.members.clients:
        sections.append(list_states(run, marked))
    if len(marked) > 1:
        sections.append(draw_styles(marked))
    labs = list_labs(run).title
    return [*sections, *(table for table in list_tables(run) if table.title != labs)]


@torch.no_grad()
def read_stains(folder: Path) -> list[Stain]:
    """Return the styles of all labs of a run, with their colors; none before phase 1 has ended."""
    if not (folder / STYLES).exists():
        return []
    model = BottleGAN.load(folder / STYLES)
    colors = mix_colors(model.reference)
    return [
        Stain(name, code.numpy(), to_picture(model.restain(colors, code)))
        for name, code in ((name, model.codes[name]) for name in model.codes.names)
    ]


def list_states(run: RunState, stains: Sequence[Stain]) -> Table:
    """Return the table of labs, with each lab's stain, its state, and the lab that stains most like it."""
    seen, nearest, labs = {stain.name: stain for stain in stains}, find_nearest(stains), list_labs(run)
    rows: list[Sequence[str]] = []
    for name, *rest in labs.rows:
        swatch = draw_swatch(seen[name].colors, f"stain of {name}") if name in seen else ""
        other, apart = nearest.get(name, ("", 0.0))
        rows.append((name, swatch, tell_state(run, name), f"{other}, {apart:.2f}" if other else "", *rest))
    rows += [(name, "", "removed", "", *[""] * (len(labs.columns) - 1)) for name in run.members.removed]
    columns = (labs.columns[0], "stain", "state", "stains most like", *labs.columns[1:])
    return Table(labs.title, labs.caption, columns, rows)


def tell_state(run: RunState, name: str) -> str:
    """Return a lab's last action in a few words."""
    last = run.events[-1] if run.events else {}
    if last.get("kind") == WAITING and name in last.get("clients", ()):
        return "waited for"
    rounds, member = run.history.rounds, run.members.clients[name]
    for record in reversed(rounds):
        what = _tell_part(record, name)
        if what:
            return f"{what} round {record.number}"
    labels = "" if member.labeled else "; has no labels"
    return f"sent its style{labels}" if member.verdict else "joined"


def _tell_part(record: RoundRecord, name: str) -> str:
    """Return a lab's action in a round; an empty text if it was not asked."""
    parts = {"left out of": record.left_out, "suspected in": record.suspects, "trained in": record.trained}
    return next((what for what, names in parts.items() if name in names), "")


def is_trouble(state: str) -> bool:
    """Return whether a state needs attention."""
    return state.startswith(("left out", "suspected", "waited for"))


def draw_styles(stains: Sequence[Stain]) -> Drawing:
    """Return the map of all labs' styles."""
    shown = place_styles(np.stack([stain.code for stain in stains])).shown
    caption = (
        "Each lab is a swatch of its stain at the position of its style code. Hematoxylin increases to the right, "
        "eosin downward. A line leads to the lab that stains most like it. An orange frame marks a lab that was left "
        "out, is suspected or is late. "
        f"The plane shows {shown:.0%} of the differences. Unrelated styles are about 1.4 apart."
    )
    return Drawing("Map of the labs' styles", caption, draw_style_map(stains, "map of the labs' styles"))
