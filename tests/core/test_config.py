import json
import tomllib
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottlegan.core.config import change, document, load, parse, to_json, to_toml
from bottlegan.core.errors import ConfigError, MissingError


@document
class Inner:
    count: int = 1
    sizes: tuple[int, ...] = (1, 2)


@document
class Outer:
    name: str
    mode: Literal["fast", "exact"] = "fast"
    rate: float = 0.5
    folder: Path | None = None
    inner: Inner = Inner()

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ConfigError("rate must not be negative")


outers = st.builds(
    Outer,
    name=st.text(st.characters(codec="utf-8", exclude_categories=["C"])),
    mode=st.sampled_from(["fast", "exact"]),
    rate=st.floats(0, allow_infinity=False, allow_nan=False),
    folder=st.none() | st.just(Path("a/b")),
    inner=st.builds(Inner, count=st.integers(-(2**63), 2**63 - 1), sizes=st.lists(st.integers(0, 9)).map(tuple)),
)


@given(outers)
def test_documents_survive_toml_and_json(config: Outer) -> None:
    assert parse(Outer, tomllib.loads(to_toml(config)), "toml") == config
    assert parse(Outer, json.loads(to_json(config)), "json") == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "`name` is missing"),
        ({"name": "a", "extra": 1}, "unknown key `extra`"),
        ({"name": 1}, "`name`.*string.*got 1"),
        ({"name": "a", "inner": {"extra": 1}}, "unknown key `inner.extra`"),
        ({"name": "a", "inner": {"count": "1"}}, "`inner.count`.*integer.*got '1'"),
        ({"name": "a", "inner": {"count": True}}, "`inner.count`"),
        ({"name": "a", "inner": {"sizes": [1, "x"]}}, "`inner.sizes.1`"),
        ({"name": "a", "mode": "slow"}, "`mode`.*'fast' or 'exact'.*got 'slow'"),
        ({"name": "a", "rate": -1.0}, "rate must not be negative"),
        ({"name": "a", "rate": float("nan")}, "JSON"),
        ({"name": "a", "rate": object()}, "JSON"),
        ([], "document"),
    ],
)
def test_a_wrong_document_is_refused_by_the_name_of_its_key(values: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse(Outer, values, "lab.toml")
    assert str(caught.value).startswith("lab.toml: ")
    assert "\n" not in str(caught.value)


def test_files_are_read_by_their_suffix(tmp_path: Path) -> None:
    config = Outer(name="x", rate=0.25)
    (tmp_path / "a.toml").write_text(to_toml(config))
    (tmp_path / "a.json").write_text(to_json(config))
    assert load(Outer, tmp_path / "a.toml") == load(Outer, tmp_path / "a.json") == config


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("a.toml", b"name = ", "TOML"), ("a.json", b"{", "JSON"), ("a.toml", b"\xff\xfe", "UTF-8")],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load(Outer, path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"gone\.toml"):
        load(Outer, tmp_path / "gone.toml")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deep.toml", "a = " + "[" * 50_000 + "]" * 50_000),
        ("deep.toml", "[" + ".".join("a" * 5000) + "]"),
        ("deep.json", "[" * 100_000 + "]" * 100_000),
    ],
)
def test_a_document_that_is_nested_too_deeply_is_refused_in_one_line(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=r"deep\.(toml|json): is nested too deeply") as caught:
        load(Outer, tmp_path / name)
    assert len(str(caught.value)) < 300


def test_settings_are_changed_one_by_one() -> None:
    values = {"rate": 1.0, "model": {"width": 3}}
    changed = change(values, ["rate=0.5", "model.width = 8", "model.kind=pixel", "new.table.list=[1, 2]"])
    assert changed == {"rate": 0.5, "model": {"width": 8, "kind": "pixel"}, "new": {"table": {"list": [1, 2]}}}
    assert values == {"rate": 1.0, "model": {"width": 3}}


@pytest.mark.parametrize("text", ["rate", "=1", ".a=1", "a..b=1", "rate.x=1"])
def test_what_is_no_change_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        change({"rate": 1.0}, [text])
