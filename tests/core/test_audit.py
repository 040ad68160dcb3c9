"""A log shows whether it was changed."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottlegan.cli import main as cli
from bottlegan.core.audit import FIRST, Chain, read_head, verify
from bottlegan.core.errors import InputError, MissingError


def write(path: Path, *kinds: str) -> list[str]:
    chain = Chain(path)
    heads = [chain.append({"kind": kind}) for kind in kinds]
    chain.close()
    return heads


def test_what_is_appended_is_chained_across_openings(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    heads = [*write(path, "a", "b"), *write(path, "c")]
    assert verify(path).head == heads[-1] == read_head(path)
    assert verify(path).lines == 3
    assert all(verify(path, head).head == heads[-1] for head in heads)


@given(line=st.integers(0, 3), what=st.sampled_from(["change", "remove", "double", "move"]))
def test_any_line_that_is_changed_added_or_removed_is_found(
    tmp_path_factory: pytest.TempPathFactory, line: int, what: str
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    write(path, "a", "b", "c", "d", "e")
    lines = path.read_text().splitlines()
    match what:
        case "change":
            lines[line] = lines[line].replace('"kind": "', '"kind": "x')
        case "remove":
            del lines[line]
        case "double":
            lines.insert(line, lines[line])
        case "move":
            lines[line], lines[line + 1] = lines[line + 1], lines[line]
    path.write_text("".join(f"{each}\n" for each in lines))
    with pytest.raises(InputError, match="line . was changed" if what == "change" else "chain is broken at line"):
        verify(path)


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(tmp_path_factory: pytest.TempPathFactory, place: float, bit: int) -> None:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    write(path, "a", "b", "c")
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    path.write_bytes(content)
    try:
        found = verify(path)
    except InputError:
        return
    assert found.torn, "a crash can tear a line, too; that is said"


@pytest.mark.parametrize("how", ["cut off", "written anew"])
def test_a_noted_head_finds_what_the_chain_cannot(tmp_path: Path, how: str) -> None:
    path = tmp_path / "log.jsonl"
    noted = write(path, "a", "b", "c")[-1]
    if how == "cut off":
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    else:
        path.unlink()
        write(path, "a", "b", "x")
    verify(path)
    with pytest.raises(InputError, match="cut off, or the log was written anew"):
        verify(path, noted)


def test_a_crash_in_the_middle_of_a_line_costs_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, "a", "b")
    path.write_bytes(path.read_bytes()[:-20])
    assert verify(path).torn == (2,)
    write(path, "c", "d")
    found = verify(path)
    assert (found.lines, found.torn) == (4, (2,))
    path.write_bytes(path.read_bytes().replace(b'"kind": "b"', b'"kind": "z"'))
    with pytest.raises(InputError, match="line 3"):
        verify(path)


def test_lines_that_are_no_records_are_not_waved_through(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, "a")
    path.write_text(path.read_text() + "{\n{\n")
    with pytest.raises(InputError, match="no records"):
        verify(path)
    path.write_text("[" * 100_000)
    assert verify(path).torn == (1,)


APPEND = "from pathlib import Path; from bottlegan.core.audit import Chain; import sys; c = Chain(Path(sys.argv[1]))"


def test_several_processes_may_append(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    code = f"{APPEND}; [c.append({{'kind': 'x'}}) for _ in range(50)]"
    workers = [subprocess.Popen([sys.executable, "-c", code, path]) for _ in range(2)]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    assert verify(path).lines == 100


def test_an_empty_log_and_none(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").touch()
    assert verify(tmp_path / "log.jsonl").head == FIRST == read_head(tmp_path / "none")
    with pytest.raises(MissingError, match="no such log"):
        verify(tmp_path / "none")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str | Path) -> int:
        monkeypatch.setattr("sys.argv", ["bottlegan", "audit", *map(str, words)])
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    path = tmp_path / "log.jsonl"
    head = write(path, "a", "b")[-1]
    assert run(tmp_path) == 0
    assert head in capsys.readouterr().out
    path.write_text(path.read_text().replace("a", "z", 1))
    assert run(path) == 2
    assert capsys.readouterr().err.count("\n") == 1
