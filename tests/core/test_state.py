"""State on disk: durable, atomic, in two generations, and refused if any bit has changed."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottlegan.core.config import document
from bottlegan.core.errors import DamagedError, MissingError
from bottlegan.core.stamp import BLANK, is_whole, stamp
from bottlegan.core.state import (
    find_older,
    read_document,
    read_generation,
    read_state,
    write_document,
    write_generation,
    write_state,
)


@document
class Ours:
    number: int = 3
    text: str = ""


@given(before=st.binary(max_size=20), after=st.binary(max_size=60), data=st.data())
def test_any_flipped_bit_is_found(before: bytes, after: bytes, data: st.DataObject) -> None:
    whole = stamp(before + BLANK.encode() + after)
    assert is_whole(whole)
    place, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    assert not is_whole(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
    assert not is_whole(whole[:place])
    assert not is_whole(whole + b"x")


def test_what_has_no_place_for_a_checksum_is_not_stamped() -> None:
    for content in (b"", b"text", BLANK.encode()[:-1], stamp(BLANK.encode())):
        with pytest.raises(ValueError, match="no place for a checksum"):
            stamp(content)
    assert not is_whole(b"text")


def test_what_others_write_is_never_taken_for_the_checksum(tmp_path: Path) -> None:
    text = f"sha256:{'ab' * 32} {BLANK}"
    write_document(tmp_path / "a.json", Ours(text=text))
    assert read_document(Ours, tmp_path / "a.json").text == text


def test_a_damaged_document_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_document(path, Ours(number=1))
    path.write_text(path.read_text().replace('"number": 1', '"number": 9'))
    with pytest.raises(
        DamagedError, match=r"a.json: is damaged: its checksum does not match; restore it from a backup$"
    ):
        read_document(Ours, path)
    with pytest.raises(MissingError, match="there is no such file"):
        read_document(Ours, tmp_path / "b.json")


def test_state_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, done = tmp_path / "a", []
    synced, renamed = os.fsync, Path.replace

    def sync(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        synced(handle)

    def rename(self: Path, target: Path) -> Path:
        done.append("rename")
        return renamed(self, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", rename)
    write_state(path, BLANK.encode())
    assert done == ["file", "rename", "folder"]


def test_the_generation_before_is_used_and_said(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert read_generation(path, "weep") is None
    for text in ("one", "two", "three"):
        write_generation(path, f"{BLANK} {text}".encode())
    kept = read_generation(path, "weep")
    assert kept is not None
    assert (kept.content.split()[1], kept.damage) == (b"three", None)
    path.write_bytes(path.read_bytes().replace(b"three", b"thrEe"))
    kept = read_generation(path, "weep")
    assert kept is not None
    assert kept.content.split()[1] == b"two"
    assert kept.damage is not None
    assert kept.damage.endswith(
        "a.json: is damaged: its checksum does not match; using the generation before it, a.previous.json"
    )
    find_older(path).write_bytes(b"")
    with pytest.raises(DamagedError, match=r"a.json: is damaged.*a.previous.json: is damaged.*; weep"):
        read_generation(path, "weep")


@pytest.mark.parametrize("at", [1, 2])
def test_a_crash_at_any_rename_leaves_a_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    path, count, renamed = tmp_path / "a", 0, Path.replace
    write_generation(path, f"{BLANK} one".encode())

    def rename(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == at:
            raise KeyboardInterrupt
        return renamed(self, target)

    monkeypatch.setattr(Path, "replace", rename)
    with pytest.raises(KeyboardInterrupt):
        write_generation(path, f"{BLANK} two".encode())
    kept = read_generation(path, "weep")
    assert kept is not None
    assert kept.content == read_state(path if at == 1 else find_older(path))
    assert kept.content.endswith(b"one")
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]
