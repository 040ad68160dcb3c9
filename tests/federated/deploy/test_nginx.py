"""The nginx configuration of a deployment in a real nginx: which requests reach the SuperLink, and which do not."""

import http.client
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bottlegan.bench.deployment import reserve_port
from bottlegan.federated.deploy.consortium import deploy
from bottlegan.federated.server.config import FederationConfig

Proxy = Callable[[Path, str, str], AbstractContextManager[None]]
MEGABYTE = 2**20
HOST = "federation.example.org"


class Upstream(ThreadingHTTPServer):
    """Takes the SuperLink's place, and records the path, headers and body length of each request."""

    def __init__(self, server: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.heard: list[tuple[str, Mapping[str, str], int]] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server / "server.crt", server / "server.key")
        self.socket = context.wrap_socket(self.socket, server_side=True)


class Answer(BaseHTTPRequestHandler):
    server: Upstream

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.heard.append((self.path, dict(self.headers), len(body)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815 - named by http.server

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def listening(server: Path) -> Iterator[Upstream]:
    with Upstream(server) as upstream:
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        yield upstream
        upstream.shutdown()


@pytest.fixture
def made(tmp_path: Path) -> Path:
    deploy(tmp_path / "consortium", HOST, ["graz", "uppsala"], FederationConfig())
    return tmp_path / "consortium"


def ask(port: str, made: Path, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> int:
    """Return the status of a request by a lab, which trusts only its own ca.crt."""
    context = ssl.create_default_context(cafile=made / "labs" / "graz" / "ca.crt")
    connection = http.client.HTTPSConnection("127.0.0.1", int(port), context=context, timeout=60)
    try:
        connection.putrequest("POST" if body else "GET", path, skip_accept_encoding=True)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        return connection.getresponse().status
    finally:
        connection.close()


def test_labs_reach_the_fleet_api_and_nothing_else(made: Path, proxy: Proxy) -> None:
    port = reserve_port()
    with (
        listening(made / "server") as upstream,
        proxy(made / "server" / "nginx.conf", port, str(upstream.server_address[1])),
    ):
        told = {"Authorization": "Bearer operator"}
        assert ask(port, made, "/v1/fleet/pull-messages", b"a" * 6 * MEGABYTE, told) == 200
        assert ask(port, made, "/health") == 200
        (path, headers, length), health = upstream.heard
        assert (path, length) == ("/v1/fleet/pull-messages", 6 * MEGABYTE)
        assert "Authorization" not in headers
        assert health[0] == "/health"

        upstream.heard.clear()
        for closed in (
            "/",
            "/v1/control/start-run",
            "/v1/fleet/../control/start-run",
            "/v1/fleet/%2e%2e/control/start-run",
            "/v1/fleet/..%2fcontrol/start-run",
            "/v1/fleet/%2e%2e%2fcontrol/start-run",
            "/v1/fleet/x/..//../control/start-run",
            "//v1/control/start-run",
            "/health/../v1/control/start-run",
            "/V1/FLEET/pull-messages",
            "/v1/fleet.Control/start-run",
        ):
            assert ask(port, made, closed, b"a") == 404, closed
        assert ask(port, made, "/v1/fleet") == 301  # nginx redirects to the same path with a slash
        assert ask(port, made, "/v1/fleet/push-messages", headers={"Content-Length": str(33 * MEGABYTE)}) == 413
        assert upstream.heard == []

        ask(port, made, "/v1/fleet/%252e%252e/control", b"a")
        assert [path for path, *_ in upstream.heard] == ["/v1/fleet/%252e%252e/control"]


def test_nginx_hands_nothing_to_who_has_not_the_servers_certificate(made: Path, proxy: Proxy, tmp_path: Path) -> None:
    deploy(tmp_path / "other", HOST, ["graz", "uppsala"], FederationConfig())
    port = reserve_port()
    with (
        listening(tmp_path / "other" / "server") as upstream,
        proxy(made / "server" / "nginx.conf", port, str(upstream.server_address[1])),
    ):
        assert ask(port, made, "/v1/fleet/pull-messages", b"a") == 502
        assert upstream.heard == []
