"""A page of drawings and tables that follows its files: a federation's run, or a lab's drift."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bottlegan import __version__
from bottlegan.core.progress import Json
from bottlegan.federated.server.folder import FAILED, FINISHED, HISTORY, LOG, MEMBERS, STYLES, WAITING
from bottlegan.quality.drift_file import read_drift
from bottlegan.quality.drift_report import DATA, list_sections, say_lead
from bottlegan.quality.report import Drawing, Table
from bottlegan.quality.run_board import list_board, read_stains
from bottlegan.quality.run_report import RunState, read_run
from bottlegan.quality.style_map import Stain

Mark = tuple[int, int]
"""Modification time and size of a file."""


@dataclass(frozen=True)
class Page:
    """The content of a board."""

    title: str
    lead: str
    state: str
    """good, uncertain, refused, or empty while the run continues."""
    share: float | None
    """Share of the work that is done, if known."""
    sections: Sequence[Table | Drawing]


class Board:
    """Reads files again only when they have changed."""

    def __init__(self, files: Sequence[Path], read: Callable[[], Page]) -> None:
        """Follow these files."""
        self.files, self._read, self._lock = files, read, Lock()
        self._marks: list[Mark | None] | None = None
        self._page: dict[str, Json] = {}
        self._version = 0

    def tell(self) -> dict[str, Json]:
        """Return the current page. Its version changes whenever its content does."""
        with self._lock:
            marks = [_mark(file) for file in self.files]
            if marks != self._marks:
                page = self._read()
                self._version += 1
                self._marks, self._page = marks, _to_json(page)
            changed = max((mark[0] for mark in marks if mark is not None), default=0) / 1e9
            return {"version": self._version, "changed": changed, "package": __version__, **self._page}


def follow_run(folder: Path) -> Board:
    """Return the board of a federation, which may be running."""
    styles: dict[Mark | None, list[Stain]] = {}

    def read() -> Page:
        mark = _mark(folder / STYLES)
        if mark not in styles:
            styles.clear()
            styles[mark] = read_stains(folder)
        run = read_run(folder)
        share = len(run.history.rounds) / run.planned if run.planned else None
        return Page(folder.resolve().name, run.status, _judge(run), share, list_board(run, styles[mark]))

    board = Board([folder / name for name in (LOG, HISTORY, MEMBERS, STYLES)], read)
    board.tell()  # refuses a folder that is not a run right away
    return board


def follow_drift(folder: Path) -> Board:
    """Return the board of a lab's drift, from the latest files of `bottlegan drift`."""

    def read() -> Page:
        drift = read_drift(folder / DATA)
        state = "refused" if drift.drifted else "uncertain" if drift.limit is None else "good"
        return Page(f"Stain drift: {drift.style}", say_lead(drift), state, None, list_sections(drift))

    board = Board([folder / DATA], read)
    board.tell()
    return board


def list_routes(board: Board) -> list[Route]:
    """Return the routes of a board."""

    def tell(request: Request) -> Response:
        return JSONResponse(board.tell())

    return [Route("/api/board", tell)]


def _judge(run: RunState) -> str:
    kind = run.events[-1]["kind"] if run.events else ""
    return {FINISHED: "good", WAITING: "uncertain", FAILED: "refused"}.get(kind, "")


def _mark(file: Path) -> Mark | None:
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def _to_json(page: Page) -> dict[str, Json]:
    sections: list[Json] = []
    for section in page.sections:
        content: dict[str, Json] = {"title": section.title, "caption": section.caption}
        if isinstance(section, Drawing):
            content["markup"] = str(section.svg)
        else:
            content["columns"] = list(section.columns)
            content["rows"] = [[_tell_cell(cell) for cell in row] for row in section.rows]
        sections.append(content)
    return {"title": page.title, "lead": page.lead, "state": page.state, "share": page.share, "sections": sections}


def _tell_cell(cell: str) -> Json:
    """Return a cell: plain text, or markup in which all external text is already escaped."""
    return {"markup": str(cell)} if isinstance(cell, Markup) else cell
