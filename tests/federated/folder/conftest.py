from pathlib import Path

import pytest

from bottlegan.federated.folder.channel import Channel
from bottlegan.federated.folder.home import Home, make_home

LABS = ("graz", "uppsala")


def introduce(server: Home, lab: Home) -> None:
    server.trust(lab.card)
    lab.trust(server.card)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "stick"
    folder.mkdir()
    return folder


@pytest.fixture
def server(tmp_path: Path) -> Home:
    return make_home(tmp_path / "server-home", "server", server=True)


@pytest.fixture
def graz(tmp_path: Path, server: Home) -> Home:
    home = make_home(tmp_path / "graz-home", "graz")
    introduce(server, home)
    return home


@pytest.fixture
def uppsala(tmp_path: Path, server: Home) -> Home:
    home = make_home(tmp_path / "uppsala-home", "uppsala")
    introduce(server, home)
    return home


@pytest.fixture
def there(server: Home, graz: Home, shared: Path) -> Channel:
    """From the server to a lab."""
    return Channel(server, graz.card, shared)


@pytest.fixture
def back(server: Home, graz: Home, shared: Path) -> Channel:
    """From that lab to the server."""
    return Channel(graz, server.card, shared)
