"""Bundles cannot be changed, read by others, or forwarded as something else."""

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottlegan.core.errors import InputError
from bottlegan.federated.folder.bundle import MAGIC, MOST_CONTENT, BundleError, Envelope, open_bundle, seal_bundle
from bottlegan.federated.folder.card import Card, format_card, read_card, write_card
from bottlegan.federated.folder.seal import make_secret

SERVER, LAB, OTHER = make_secret(), make_secret(), make_secret()
SERVER_CARD, LAB_CARD, OTHER_CARD = write_card("server", SERVER), write_card("graz", LAB), write_card("other", OTHER)
CONTENT = b"weights of a network " * 20
ENVELOPE = Envelope(
    kind="request",
    sender=SERVER_CARD.identity,
    receiver=LAB_CARD.identity,
    number=3,
    heard=2,
    request="a" * 64,
    audit="b" * 64,
)
BUNDLE = seal_bundle(ENVELOPE, CONTENT, SERVER, LAB_CARD)


def take(path: Path, content: bytes = BUNDLE, trusted: Card = SERVER_CARD) -> tuple[Envelope, bytes, str]:
    path.write_bytes(content)
    return open_bundle(path, LAB_CARD, LAB, {trusted.identity: trusted})


def test_a_bundle_arrives_as_it_was_sent_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    envelope, content, _ = take(tmp_path / "1.bundle")
    assert (envelope, content) == (ENVELOPE, CONTENT)
    assert b"weights" not in BUNDLE
    assert seal_bundle(ENVELOPE, CONTENT, SERVER, LAB_CARD) != BUNDLE
    assert OTHER.unseal(BUNDLE[-len(CONTENT) - 48 :], b"") is None
    with pytest.raises(BundleError, match="for another receiver"):
        open_bundle(tmp_path / "1.bundle", OTHER_CARD, OTHER, {SERVER_CARD.identity: SERVER_CARD})


@given(place=st.integers(0, len(BUNDLE) - 1), bit=st.integers(0, 7))
def test_any_bit_that_is_changed_is_found(tmp_path_factory: pytest.TempPathFactory, place: int, bit: int) -> None:
    changed = bytearray(BUNDLE)
    changed[place] ^= 1 << bit
    with pytest.raises(BundleError):
        take(tmp_path_factory.mktemp("changed") / "1.bundle", bytes(changed))


@given(length=st.integers(0, len(BUNDLE) - 1))
def test_what_was_copied_in_part_is_named(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    with pytest.raises(BundleError, match="copied in part"):
        take(tmp_path_factory.mktemp("part") / "1.bundle", BUNDLE[:length])


@given(garbage=st.binary(max_size=400))
def test_whatever_lies_around_is_no_bundle(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    for content in (garbage, MAGIC + garbage, BUNDLE + garbage[:1] + b"x"):
        with pytest.raises(BundleError):
            take(tmp_path_factory.mktemp("garbage") / "1.bundle", content)


@pytest.mark.parametrize("claimed", [(2**32 - 1, 0), (10, 2**63), (300, MOST_CONTENT * 2)])
def test_a_small_file_that_claims_to_be_huge_costs_nothing(tmp_path: Path, claimed: tuple[int, int]) -> None:
    with pytest.raises(BundleError, match="which no bundle has"):
        take(tmp_path / "1.bundle", MAGIC + struct.pack("<IQ", *claimed) + bytes(100))


def test_an_envelope_that_nests_without_end_is_refused(tmp_path: Path) -> None:
    words = b"[" * 2000
    with pytest.raises(BundleError, match="envelope that cannot be read"):
        take(tmp_path / "1.bundle", MAGIC + struct.pack("<IQ", len(words), 0) + words + bytes(64))


def test_a_foreign_bundle_is_refused_before_its_content_is_looked_at(tmp_path: Path) -> None:
    foreign = seal_bundle(replace(ENVELOPE, sender=OTHER_CARD.identity), CONTENT, OTHER, LAB_CARD)
    with pytest.raises(BundleError, match="not, or no longer, trusted"):
        take(tmp_path / "1.bundle", foreign)
    posing = seal_bundle(ENVELOPE, CONTENT, OTHER, LAB_CARD)
    with pytest.raises(BundleError, match="signature does not match"):
        take(tmp_path / "1.bundle", posing)


def test_what_is_sealed_cannot_be_sent_on_in_another_envelope(tmp_path: Path) -> None:
    """A trusted lab takes content that another lab sealed for the server, which it cannot read, and signs it itself."""
    length, _ = struct.unpack("<IQ", BUNDLE[8:20])
    sealed = BUNDLE[20 + length + 64 :]
    envelope = replace(ENVELOPE, sender=OTHER_CARD.identity)
    words = json.dumps({name: getattr(envelope, name) for name in sorted(envelope.__dataclass_fields__)}).encode()
    signature = OTHER.sign(MAGIC + words + hashlib.sha256(sealed).digest())
    forwarded = MAGIC + struct.pack("<IQ", len(words), len(sealed)) + words + signature + sealed
    with pytest.raises(BundleError, match="not sealed for this receiver with this envelope"):
        take(tmp_path / "1.bundle", forwarded, OTHER_CARD)


@pytest.mark.parametrize("change", [{"number": 0}, {"number": 10**9}, {"heard": -1}])
def test_numbers_are_bounded(change: dict[str, int]) -> None:
    with pytest.raises(InputError, match="a bundle's numbers must be"):
        replace(ENVELOPE, **change)


@pytest.mark.parametrize(
    ("before", "after"),
    [("graz", "wien"), (LAB_CARD.sealing, OTHER_CARD.sealing), (LAB_CARD.signing, OTHER_CARD.signing)],
    ids=["name", "sealing", "signing"],
)
def test_a_card_that_was_changed_is_refused(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "graz.card"
    path.write_text(format_card(LAB_CARD))
    assert read_card(path) == LAB_CARD
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(InputError, match="was changed after it was made"):
        read_card(path)


@pytest.mark.parametrize("text", ["", "name = 1", "[" * 5000, "name = 'a'\nsigning = 'zz'\nsealing = ''", "x" * 20000])
def test_what_is_no_card_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.card"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_card(path)
    assert "\n" not in str(caught.value)


def test_secrets_do_not_print() -> None:
    assert LAB.signing.hex() not in f"{LAB!r} {LAB}"
