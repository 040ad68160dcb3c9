"""Access control: only this machine's user may send requests, through the address that the command printed.

The server listens only on the loopback interface. But any page in the user's browser can send requests there. So each
request must carry the token in its address, name this server as its host, and come from the server's own page.
"""

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]

SAFE = ("GET", "HEAD")
OWN = ("same-origin", "none")
"""Accepted origins of a request, as the browser states them: our page, or the user who opened the address."""
HEADERS = {
    # Scripts and styles only from this server, plus the one style that OpenSeadragon adds to pages. Images may also
    # come from blobs that scripts made.
    "content-security-policy": "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; "
    "style-src 'self' 'sha256-9xTiqzfwFaL2SGb1rmr8gysEwVVjIvqWAgmZgqFqpEE='; form-action 'none'; "
    "frame-ancestors 'none'",
    "cache-control": "no-store",  # patients' pixels must not stay in the browser's cache
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",  # a referrer would contain the token
    "x-content-type-options": "nosniff",
}


def make_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(24)


class Guard:
    """Admits requests with the token in their path, which it strips, and refuses all others in the same way."""

    def __init__(self, app: App, token: str, port: int) -> None:
        """Protect an app that is served on a port."""
        self.app, self.token = app, token
        self.hosts = (f"127.0.0.1:{port}", f"localhost:{port}")

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer one request."""

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        rest = self._admit(scope) if scope["type"] == "http" else None
        if rest is None:
            refusal = PlainTextResponse("Not found. Use the address that bottlegan view printed.", 404)
            await refusal(scope, receive, send_guarded)
            return
        await self.app({**scope, "path": rest, "raw_path": rest.encode(), "root_path": ""}, receive, send_guarded)

    def _admit(self, scope: Scope) -> str | None:
        """Return the path after the token, or None if the request is refused."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self.hosts:  # another host name that resolves here belongs to a foreign page
            return None
        if origin is not None and origin != f"http://{host}":
            return None
        if scope["method"] not in SAFE and origin is None:
            return None
        if headers.get("sec-fetch-site", "none") not in OWN:
            return None
        token, slash, rest = scope["path"].removeprefix("/").partition("/")
        if not slash or not secrets.compare_digest(token.encode(), self.token.encode()):
            return None
        return f"/{rest}"
