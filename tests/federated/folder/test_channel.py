"""Each bundle counts once and in order, whatever happens to the files."""

import json
import logging
import shutil
from pathlib import Path

import pytest

from bottlegan.core.audit import verify
from bottlegan.core.errors import InputError, MissingError
from bottlegan.federated.folder.channel import Channel
from bottlegan.federated.folder.home import Home, make_home

Kind = str


def take_all(channel: Channel, kind: str = "request") -> list[bytes]:
    found = []
    for arrival in channel.arrivals(kind):  # type: ignore[arg-type]
        channel.accept(arrival)
        found.append(arrival.content)
    return found


def ask(channel: Channel, *contents: bytes) -> None:
    for content in contents:
        channel.send("request", content.hex(), content)


def refusals(home: Home) -> list[str]:
    lines = [json.loads(line) for line in (home.folder / "audit.jsonl").read_text().splitlines()]
    return [line["reason"] for line in lines if line["kind"] == "refused"]


def test_what_is_sent_arrives_once_and_in_order(there: Channel, back: Channel) -> None:
    ask(there, b"one", b"two", b"three")
    assert take_all(back) == [b"one", b"two", b"three"]
    assert take_all(back) == []
    assert refusals(back.home) == []


def test_names_and_dates_of_files_do_not_matter(there: Channel, back: Channel) -> None:
    ask(there, b"one", b"two")
    first, second = (back.inbox / f"0000000{number}.bundle" for number in (1, 2))
    first.rename(back.inbox / "x.bundle")
    second.rename(first)
    (back.inbox / "x.bundle").rename(second)
    assert take_all(back) == [b"one", b"two"]


def test_a_bundle_that_is_shown_again_has_no_effect(there: Channel, back: Channel) -> None:
    ask(there, b"one")
    shutil.copytree(back.inbox, back.inbox.with_name("kept by somebody"))
    assert take_all(back) == [b"one"]
    ask(there, b"two")
    assert take_all(back) == [b"two"]
    back.ledger.taken.clear()  # as if it were an old one, so that it counts as a replay
    shutil.copy(next(back.inbox.with_name("kept by somebody").iterdir()), back.inbox / "00000009.bundle")
    assert take_all(back) == []
    assert any("it is an old one" in reason for reason in refusals(back.home))
    assert back.ledger.heard == 2


def test_one_that_comes_after_a_later_one_is_refused(there: Channel, back: Channel, tmp_path: Path) -> None:
    ask(there, b"one", b"two")
    (back.inbox / "00000001.bundle").rename(tmp_path / "late")
    assert take_all(back) == [b"two"]
    (tmp_path / "late").rename(back.inbox / "00000001.bundle")
    assert take_all(back) == []
    assert ["it is an old one" in reason for reason in refusals(back.home)] == [True]


@pytest.mark.parametrize("damage", ["changed", "truncated", "foreign", "garbage"])
def test_what_cannot_be_believed_is_named_and_the_rest_is_taken(
    there: Channel, back: Channel, damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ask(there, b"one", b"two")
    path = back.inbox / "00000001.bundle"
    content = path.read_bytes()
    match damage:
        case "changed":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "truncated":
            path.write_bytes(content[: len(content) // 2])
        case "garbage":
            path.write_bytes(b"MZ")
        case "foreign":
            stranger = make_home(tmp_path / "stranger", "server", server=True)
            stranger.trust(back.home.card)
            (tmp_path / "elsewhere").mkdir()
            ask(other := Channel(stranger, back.home.card, tmp_path / "elsewhere"), b"evil")
            shutil.copy(other.published / "00000001.bundle", path)
    with caplog.at_level(logging.WARNING):
        assert take_all(back) == [b"two"]
        assert take_all(back) == []
    assert len(caplog.records) == len(refusals(back.home)) == 1
    assert "00000001.bundle" in caplog.text


def test_what_was_damaged_on_the_way_is_taken_when_it_is_copied_again(there: Channel, back: Channel) -> None:
    ask(there, b"one")
    (back.inbox / "00000001.bundle").write_bytes(b"BGBUNDL1 and no more")
    assert take_all(back) == []
    there.publish()
    assert take_all(back) == [b"one"]


def test_a_stick_that_was_lost_is_written_again_until_all_has_arrived(there: Channel, back: Channel) -> None:
    ask(there, b"one")
    shutil.rmtree(there.published)
    there.publish()
    (arrival,) = back.arrivals("request")
    back.send("reply", arrival.envelope.request, b"yes", answered=arrival)
    assert [path.name for path in there.published.iterdir()] == ["00000001.bundle"]
    assert take_all(there, "reply") == [b"yes"]
    there.publish()
    assert list(there.published.iterdir()) == []
    assert list(there.outbox.iterdir()) == []


def test_a_home_restored_from_a_backup_goes_on(there: Channel, back: Channel, tmp_path: Path, shared: Path) -> None:
    shutil.copytree(back.home.folder, tmp_path / "backup")
    for content in (b"one", b"two"):
        ask(there, content)
        (arrival,) = back.arrivals("request")
        back.send("reply", arrival.envelope.request, b"re: " + content, answered=arrival)
        assert take_all(there, "reply") == [b"re: " + content]
    restored = Channel(Home(tmp_path / "backup"), there.home.card, shared)
    ask(there, b"three")
    arrival = list(restored.arrivals("request"))[-1]
    restored.send("reply", arrival.envelope.request, b"re: three", answered=arrival)
    assert take_all(there, "reply") == [b"re: three"]


def test_a_lab_cannot_ask_nor_the_server_answer(there: Channel, back: Channel) -> None:
    back.send("request", "x", b"give me everybody's weights")
    assert take_all(there, "reply") == []
    assert "only a reply can come from graz" in refusals(there.home)[0]


def test_another_lab_cannot_speak_for_this_one(there: Channel, back: Channel, uppsala: Home, shared: Path) -> None:
    own = Channel(uppsala, there.home.card, shared)
    own.send("reply", "x", b"from uppsala")
    shutil.copytree(own.published, back.published)
    assert take_all(there, "reply") == []
    assert "not, or no longer, trusted here" in refusals(there.home)[0]


def test_nothing_from_one_that_was_revoked_is_taken(there: Channel, back: Channel, shared: Path) -> None:
    back.send("reply", "x", b"hello")
    there.home.revoke("graz")
    assert there.home.trusted() == {}
    with pytest.raises(InputError, match="trusts nobody called graz"):
        there.home.find("graz")


def test_new_keys_begin_a_new_channel_and_the_old_ones_open_nothing(
    there: Channel, back: Channel, shared: Path
) -> None:
    ask(there, b"one")
    back.home.rotate()
    renewed = Channel(Home(back.home.folder), there.home.card, shared)
    assert take_all(renewed) == []
    assert "keys that were replaced here" in refusals(back.home)[0]
    with pytest.raises(InputError, match="another key of graz is trusted already"):
        there.home.trust(renewed.home.card)
    there.home.trust(renewed.home.card, replacing=True)
    ask(again := Channel(there.home, renewed.home.card, shared), b"two")
    again.publish()
    assert take_all(renewed)[-1] == b"two"


def test_a_second_key_under_a_name_and_a_second_name_for_a_key_are_refused(
    server: Home, graz: Home, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="another key of graz"):
        server.trust(make_home(tmp_path / "false", "graz").card)
    with pytest.raises(InputError, match="itself"):
        server.trust(make_home(tmp_path / "same", "server", server=True).card)
    with pytest.raises(InputError, match="a lab has one server"):
        graz.trust(make_home(tmp_path / "second", "server-2", server=True).card)
    assert list(server.trusted()) == ["graz"]


def test_only_the_owner_can_read_a_home_and_others_can_read_the_stick(there: Channel, back: Channel) -> None:
    ask(there, b"one")
    (arrival,) = back.arrivals("request")
    back.send("reply", "x", b"yes", answered=arrival)
    for home in (there.home, back.home):
        paths = [home.folder, *home.folder.rglob("*")]
        assert [path for path in paths if path.stat().st_mode & 0o077] == []
        assert verify(home.folder / "audit.jsonl").lines > 2
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in there.published.rglob("*"))


def test_each_logs_the_head_of_the_others_log(there: Channel, back: Channel) -> None:
    noted = there.home.audit_head()
    ask(there, b"one")
    take_all(back)
    lines = [json.loads(line) for line in (back.home.folder / "audit.jsonl").read_text().splitlines()]
    assert [line["head"] for line in lines if line["kind"] == "taken"] == [noted]
    assert verify(there.home.folder / "audit.jsonl", noted)


def test_homes_that_are_none(tmp_path: Path, graz: Home, shared: Path, server: Home) -> None:
    with pytest.raises(MissingError, match="exchange init"):
        Home(tmp_path)
    with pytest.raises(InputError, match="not empty"):
        make_home(graz.folder, "graz")
    with pytest.raises(InputError, match="cannot be called"):
        make_home(tmp_path / "new", "../graz")
    assert not (tmp_path / "new").exists()
    with pytest.raises(MissingError, match="plug in the medium"):
        Channel(graz, server.card, tmp_path / "gone")
    (graz.folder / "secret.json").write_text('{"signing": "00", "sealing": "secret stuff"}')
    with pytest.raises(InputError) as caught:
        Home(graz.folder)
    assert "stuff" not in str(caught.value)
