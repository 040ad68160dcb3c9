"""The home of one side of an exchange: its keys, the sides that it trusts, the state of its channels, and its log.

| file | holds |
| --- | --- |
| NAME.card | the side's own public card, which the others need |
| secret.json | its secret keys |
| home.json, lab.toml | whether it is a server or a lab, and where a lab's images are |
| trusted/, revoked/ | cards of the others |
| channels/ | the state of each channel: numbers, bundles not acknowledged yet, replies that are still needed |
| audit.jsonl | a chained log of every bundle sent, accepted or refused, and of every change of trust |
"""

from pathlib import Path

from bottlegan.core.audit import read_head
from bottlegan.core.config import document, load, to_json
from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.files import keeping_private, make_folder, replacing_folder, write_text
from bottlegan.core.progress import EventLog, Json
from bottlegan.federated.deploy.render import render
from bottlegan.federated.folder.card import Card, format_card, read_card, write_card
from bottlegan.federated.folder.seal import Secret, make_secret
from bottlegan.imaging.files import MASK_ENDING

SECRET, SETTINGS, TRUSTED, REVOKED, AUDIT = "secret.json", "home.json", "trusted", "revoked", "audit.jsonl"
ENDING = ".card"


@document
class HomeConfig:
    """The settings of a side."""

    name: str
    lab: Path | None = None
    """Its lab.toml; None for the server."""


@document
class SecretFile:
    """Secret keys in hexadecimal."""

    signing: str
    sealing: str


class Home:
    """One side."""

    def __init__(self, folder: Path) -> None:
        """Open the home in `folder`, which `make_home` has created."""
        if not (folder / SETTINGS).is_file():
            raise MissingError(f"{folder}: is not the home of an exchange; make one with: bottlegan exchange init")
        self.folder = folder
        self.config = load(HomeConfig, folder / SETTINGS)
        self.card = read_card(folder / f"{self.config.name}{ENDING}")
        self.secret = _read_secret(folder / SECRET)
        if self.secret.publish() != self.card.public:
            raise InputError(f"{folder}: card and secret keys do not belong together; restore both from one backup")

    @property
    def card_file(self) -> Path:
        """The path of the side's own card."""
        return self.folder / f"{self.config.name}{ENDING}"

    def trusted(self) -> dict[str, Card]:
        """Return the cards of all trusted sides by name."""
        cards = [read_card(path) for path in sorted((self.folder / TRUSTED).glob(f"*{ENDING}"))]
        return {card.name: card for card in cards}

    def trust(self, card: Card, *, replacing: bool = False) -> None:
        """Trust a card. Another key under a trusted name is refused, unless `replacing`."""
        trusted = self.trusted()
        if card.name == self.card.name or card.identity == self.card.identity:
            raise InputError(f"the card is that of {self.card.name} itself, or called the same; give the other side's")
        if card.name in trusted and trusted[card.name].identity != card.identity and not replacing:
            raise InputError(
                f"another key of {card.name} is trusted already ({trusted[card.name].fingerprint}); if {card.name} "
                "confirms that it has made new keys, use --replace"
            )
        taken = [
            other.name for other in trusted.values() if other.identity == card.identity and other.name != card.name
        ]
        if taken:
            raise InputError(f"the keys of {card.name} are trusted already, under the name {taken[0]}")
        if self.config.lab is not None and set(trusted) - {card.name}:
            raise InputError(f"a lab has one server, and this one trusts {', '.join(trusted)}; revoke that first")
        with keeping_private():
            make_folder(self.folder / TRUSTED)
            write_text(self.folder / TRUSTED / f"{card.name}{ENDING}", format_card(card))
            self.record("trusted", name=card.name, fingerprint=card.fingerprint)

    def revoke(self, name: str) -> Card:
        """Stop trusting a side: accept nothing from it and send nothing to it any more."""
        card = self.find(name)
        with keeping_private():
            make_folder(self.folder / REVOKED)
            (self.folder / TRUSTED / f"{name}{ENDING}").rename(
                self.folder / REVOKED / f"{name}.{card.identity[:8]}{ENDING}"
            )
            self.record("revoked", name=name, fingerprint=card.fingerprint)
        return card

    def find(self, name: str) -> Card:
        """Return the card of a trusted side."""
        trusted = self.trusted()
        if name not in trusted:
            raise InputError(f"{self.folder}: trusts nobody called {name}; there are: {', '.join(trusted) or 'none'}")
        return trusted[name]

    def rotate(self) -> None:
        """Make new keys. The others need the new card; bundles sealed for the old keys can no longer be read."""
        with keeping_private():
            self.secret = _write_keys(self.folder, self.config.name)
            self.card = read_card(self.card_file)
            self.record("new keys", fingerprint=self.card.fingerprint)

    def audit_head(self) -> str:
        """Return the head of the log."""
        return read_head(self.folder / AUDIT)

    def record(self, kind: str, **fields: Json) -> None:
        """Append to the log."""
        with EventLog(self.folder / AUDIT) as log:
            log.event(kind, **fields)


def make_home(folder: Path, name: str, lab: Path | None = None, *, server: bool = False) -> Home:
    """Create the home of a side, with new keys, in a folder that is empty or does not exist yet.

    A lab without a lab.toml gets a template there, to be filled in.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: is there already and not empty; choose another folder")
    if lab is not None and not lab.is_file():
        raise MissingError(f"{lab}: there is no such lab.toml; write one, or check the path")
    make_folder(folder.parent)
    with keeping_private():
        with replacing_folder(folder) as new:
            _write_keys(new, name)
            (new / TRUSTED).mkdir()
            if lab is None and not server:
                lab = folder / "lab.toml"
                render("lab.toml", new / lab.name, {"mask": MASK_ENDING})
            write_text(new / SETTINGS, to_json(HomeConfig(name=name, lab=None if lab is None else lab.resolve())))
        home = Home(folder)
        home.record("begun", name=name, fingerprint=home.card.fingerprint)
    return home


def _write_keys(folder: Path, name: str) -> Secret:
    secret = make_secret()
    card = format_card(write_card(name, secret))
    write_text(folder / SECRET, to_json(SecretFile(signing=secret.signing.hex(), sealing=secret.sealing.hex())))
    write_text(folder / f"{name}{ENDING}", card)
    return secret


def _read_secret(path: Path) -> Secret:
    try:
        keys = load(SecretFile, path)
        return Secret(bytes.fromhex(keys.signing), bytes.fromhex(keys.sealing))
    except ValueError:
        # Print none of its content, whatever is wrong with it.
        raise InputError(f"{path}: does not hold this side's keys; restore it from a backup") from None
