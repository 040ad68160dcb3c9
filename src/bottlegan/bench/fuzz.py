"""The fuzz campaign: whatever is typed, a command must end in time, with a status and a reason, and leave no mess.

Each case runs in its own process, in a fresh copy of a small sandbox. Where possible, processes are forked from one
that has imported everything already, so that a case takes a fraction of a second.
"""

import hashlib
import multiprocessing
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from bottlegan.bench.fuzz_cases import FAMILIES, Case, copy_sandbox, draw_cases, make_sandbox
from bottlegan.core.progress import Json, Progress, Silent

SECONDS = 120.0
"""A case that takes longer counts as hanging. This is far more than any takes, even on a busy machine."""
MOST_LINES = 3
STATUSES = (0, 1, 2)
PROGRESS_BAR = re.compile(r"left\s+(\d|-:)")
ANSI_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Colors and cursor movements, which FORCE_COLOR turns on."""
LOGS = (".jsonl", ".checkpoint")
"""Endings of files that a failing command may leave, because they record its progress."""


@dataclass(frozen=True)
class Ending:
    """How a case ended, and its faults."""

    case: Case
    status: int | None
    faults: tuple[str, ...]
    text: str
    """The end of its standard error."""


def run_campaign(count: int, seed: int = 0, first: int = 0, progress: Progress | None = None) -> list[Ending]:
    """Run `count` cases, starting at number `first`, and return how each ended."""
    context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
    if sys.platform != "win32":
        context.set_forkserver_preload(["bottlegan.bench.fuzz_preload"])
    with tempfile.TemporaryDirectory() as root:
        sandbox = Path(root) / "sandbox"
        sandbox.mkdir()
        make_sandbox(sandbox)
        cases = list(draw_cases(count, seed, first))
        tracked = (progress or Silent()).track(cases, "fuzzing", count)
        return [_run_case(case, sandbox, Path(root) / str(number), context) for number, case in enumerate(tracked)]


def summarize(endings: Sequence[Ending]) -> dict[str, Json]:
    """Return the number of cases by family and ending, and the faults."""
    families: dict[str, Json] = {}
    for family in FAMILIES:
        counts = Counter(
            "hang" if e.status is None else f"status {e.status}" for e in endings if e.case.family == family
        )
        families[family] = {
            **dict(sorted(counts.items())),
            "faults": sum(bool(e.faults) for e in endings if e.case.family == family),
        }
    faults: list[Json] = [f"{e.case}: {'; '.join(e.faults)}: {e.text}" for e in endings if e.faults]
    return {"cases": len(endings), "families": families, "faults": faults}


def _run_case(case: Case, sandbox: Path, folder: Path, context: Any) -> Ending:
    copy_sandbox(sandbox, folder)
    if case.damage is not None:
        case.damage(folder)
    before = _list_files(folder)
    out, err = folder.with_suffix(".out"), folder.with_suffix(".err")
    # Without the damage, which was done already and cannot be pickled.
    process = context.Process(target=_run_command, args=(replace(case, damage=None), folder, out, err))
    process.start()
    process.join(SECONDS)
    status = process.exitcode
    if status is None:
        process.kill()
        process.join()
    printed, text = (path.read_text(encoding="utf-8", errors="replace") if path.exists() else "" for path in (out, err))
    faults = find_faults(status, printed, text, before, _list_files(folder))
    return Ending(case, status, tuple(faults), text[-400:])


def find_faults(
    status: int | None, printed: str, text: str, before: dict[str, str], after: dict[str, str]
) -> list[str]:
    """Return the faults in how a command ended."""
    if status is None:
        return ["hangs"]
    faults = []
    plain = ANSI_CODE.sub("", text)
    lines = [line for line in plain.splitlines() if line.strip() and not PROGRESS_BAR.search(line)]
    if status not in STATUSES:
        faults.append(f"status {status}")
    if "Traceback" in text:
        faults.append("traceback")
    elif status != 0 and not any(line.startswith("bottlegan: ") for line in lines) and "Usage:" not in printed:
        faults.append("no reason")
    if len(lines) > MOST_LINES:
        faults.append(f"{len(lines)} lines on the standard error")
    new = sorted(after.keys() - before.keys())
    if hidden := [name for name in new if Path(name).name.startswith(".") and status != 0]:
        faults.append(f"left a temporary file: {hidden[:3]}")
    if status != 0 and " are in " not in printed and (rest := [n for n in new if not n.endswith((*LOGS, "/"))]):
        faults.append(f"failed, but left {rest[:3]}")
    if changed := [name for name, digest in before.items() if after.get(name) != digest]:
        faults.append(f"changed what was there: {changed[:3]}")
    return faults


def _list_files(folder: Path) -> dict[str, str]:
    """Return the content of a folder: files with their hash, folders with a slash after their name."""
    content: dict[str, str] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink() or (path.exists() and not path.is_file() and not path.is_dir()):
            content[name] = "special"
        elif path.is_dir():
            content[f"{name}/"] = ""
        elif path.is_file():
            content[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return content


def _run_command(case: Case, folder: Path, out: Path, err: Path) -> None:
    """Run the command, in a process that does nothing else."""
    for number, path in ((1, out), (2, err)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
        encoding = case.environment.get("PYTHONIOENCODING", "utf-8")
        stream = os.fdopen(number, "w", encoding=encoding, errors="strict", closefd=False)
        setattr(sys, "stdout" if number == 1 else "stderr", stream)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115 - the process ends with it
    os.environ.update(case.environment)
    os.chdir(folder)
    if case.most_bytes is not None and sys.platform != "win32":
        import resource  # noqa: PLC0415 - not on Windows

        resource.setrlimit(resource.RLIMIT_FSIZE, (case.most_bytes, case.most_bytes))
    sys.argv = ["bottlegan", *case.arguments]
    # By name, because this package must not import the command line, which it tests.
    import_module("bottlegan.cli.main").main()
