"""Access: only with the token, only from the server's own page, and only to files that are meant to be seen."""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

import numpy as np
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from bottlegan.core.errors import InputError
from bottlegan.slides.grid import Region
from bottlegan.slides.reader import open_slide
from bottlegan.viewer.guard import make_token
from bottlegan.viewer.server import FILES, make_app, serving
from bottlegan.viewer.session import Settings, open_session
from bottlegan.viewer.slide_routes import list_routes
from bottlegan.viewer.writing import place


@pytest.fixture(scope="module")
def url(slides: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = Settings(folder=tmp_path_factory.mktemp("written"))
    with open_session(slides[:1], settings) as session, serving(make_app("view.html", list_routes(session))) as url:
        yield url


def ask(
    url: str, path: str, headers: dict[str, str] | None = None, method: str = "GET", body: bytes | None = None
) -> tuple[int, bytes, dict[str, str]]:
    """Send a request with an unnormalized path; a path that begins with a slash has no token."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.netloc, timeout=60)
    try:
        connection.request(method, path if path.startswith("/") else place.path + path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def test_what_the_page_needs_is_sent_with_headers_that_keep_others_out(url: str) -> None:
    for path in ("", "static/view.js", "static/openseadragon.min.js", "api/session", "api/slides/0/finding"):
        status, body, headers = ask(url, path)
        assert (status, bool(body)) == (200, True)
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


def test_nobody_gets_in_without_the_token(url: str) -> None:
    token = urlsplit(url).path.strip("/")
    for path in (
        "/",
        "/api/session",
        "/static/view.js",
        f"/{token[:-1]}/",
        f"/{token}x/",
        f"//{token}/",
        "/undefined/",
    ):
        assert ask(url, path)[0] == 404
    assert ask(url, f"/{token}")[0] == 404
    assert len({make_token() for _ in range(100)}) == 100
    assert len(token) >= 32


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://example.org"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Host": "example.org"},
        {"Host": "127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_other_pages_are_refused_even_with_the_token(url: str, headers: dict[str, str]) -> None:
    assert ask(url, "api/session", headers)[0] == 404
    own = f"http://{urlsplit(url).netloc}"
    assert ask(url, "api/session", {"Origin": own, "Sec-Fetch-Site": "same-origin"})[0] == 200


def test_what_changes_anything_must_come_from_the_page(url: str) -> None:
    body = json.dumps({"to": "reference", "name": "x.tiff"}).encode()
    assert ask(url, "api/slides/0/write", {}, "POST", body)[0] == 404
    assert ask(url, "api/slides/0/write", {"Origin": "http://example.org"}, "POST", body)[0] == 404
    assert ask(url, "api/slides/0/write")[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "static/../server.py",
        "static/..%2fserver.py",
        "static/%2e%2e/server.py",
        "static//etc/passwd",
        "static/%2fetc%2fpasswd",
        "static/vendor/openseadragon.min.js",
        "static/",
        "../../etc/passwd",
        "api/slides/../../server.py",
        "api/slides/1/finding",
        "api/slides/-1/finding",
        "api/slides/0/tiles/0/99/0",
        "api/slides/0/tiles/0/-1/0",
        "api/slides/0/tiles/99/0/0",
        "api/jobs/0",
        "api/files?path=/etc/passwd",
    ],
)
def test_no_path_leads_to_another_file(url: str, path: str) -> None:
    status, body, _ = ask(url, path)
    assert status == 404
    assert b"root:" not in body
    assert b"import" not in body


def test_only_shipped_files_can_be_asked_for() -> None:
    assert all(file.suffix in {".html", ".css", ".js", ".svg", ".txt"} for file in FILES.values())
    assert "openseadragon.LICENSE.txt" in FILES


@pytest.mark.parametrize(
    "query", ["x=1", "x=a&y=1", "x=1&y=99999", "x=-1&y=0", "x=1&y=1&to=style:none", "x=1&y=1&to=?"]
)
def test_pixels_that_are_not_there_are_refused_in_words(url: str, query: str) -> None:
    status, body, _ = ask(url, f"api/slides/0/pixel?{query}")
    assert status in (400, 422)
    assert json.loads(body)["error"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x.tiff", "/x.tiff", "a/b.tiff", ".hidden.tiff", "a\\b.tiff", "x.png", "x"]
)
def test_slides_are_written_to_one_folder_only(url: str, name: str) -> None:
    own = {"Origin": f"http://{urlsplit(url).netloc}"}
    body = json.dumps({"to": "reference", "name": name}).encode()
    status, said, _ = ask(url, "api/slides/0/write", own, "POST", body)
    assert status == 422
    assert json.loads(said)["error"]


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there.tiff").write_text("")
    with pytest.raises(InputError, match="already"):
        place("there.tiff", tmp_path)
    assert place("new.tiff", tmp_path) == tmp_path / "new.tiff"


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"to": 1, "name": "x.tiff"}', b'{"to": "reference", "name": "x.tiff", "path": "/"}']
)
def test_wishes_are_checked(url: str, body: bytes) -> None:
    own = {"Origin": f"http://{urlsplit(url).netloc}"}
    assert ask(url, "api/slides/0/write", own, "POST", body)[0] == 400


def test_tiles_are_the_slides_own_pixels(url: str, slides: list[Path]) -> None:
    with open_slide(slides[0]) as slide:
        wanted = slide.read(Region(0, 128, 256, 128, 128))
    status, body, _ = ask(url, "api/slides/0/tiles/0/1/2")
    assert status == 200
    assert (np.frombuffer(body, np.uint8).reshape(128, 128, 3) == wanted).all()


def test_a_port_that_is_taken_is_refused(url: str) -> None:
    port = urlsplit(url).port
    assert port is not None
    with pytest.raises(InputError, match=f"port {port} cannot be used"), serving(make_app("view.html", []), port):
        pass


def test_stopping_while_something_is_asked_for_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    begun, go_on = Event(), Event()

    def answer(request: Request) -> Response:
        begun.set()
        go_on.wait(60)
        return PlainTextResponse("late")

    with ThreadPoolExecutor(1) as pool:
        with serving(make_app("view.html", [Route("/slow", answer)])) as url:
            asking = pool.submit(ask, url, "slow")
            assert begun.wait(60)
        go_on.set()
        asking.exception()  # the response does not matter here
    assert capfd.readouterr().err == ""


def test_the_server_is_on_the_loopback_interface_only(url: str) -> None:
    assert urlsplit(url).hostname == "127.0.0.1"
