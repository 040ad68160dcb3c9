"""Who may ask: this machine's user alone, through the address that the command printed.

The server listens on the loopback interface only. But any page in the user's browser can send requests there, so each
must carry the token in its address, name this server as its host, and come from its own page.
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
"""Where a browser may say that a request comes from: our page, or the user who typed or opened the address."""
HEADERS = {
    # Scripts and styles from this server alone, and the one style that OpenSeadragon adds to pages by itself; images
    # also from what a script made.
    "content-security-policy": "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; "
    "style-src 'self' 'sha256-9xTiqzfwFaL2SGb1rmr8gysEwVVjIvqWAgmZgqFqpEE='; form-action 'none'; "
    "frame-ancestors 'none'",
    "cache-control": "no-store",  # pixels of patients are not left in a browser's cache
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",  # it would hold the token
    "x-content-type-options": "nosniff",
}


def make_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(24)


class Guard:
    """Lets through what has the token in its path, which it takes off, and refuses everything else alike."""

    def __init__(self, app: App, token: str, port: int) -> None:
        """Stand before an app that is reached at a port."""
        self.app, self.token = app, token
        self.hosts = (f"127.0.0.1:{port}", f"localhost:{port}")

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer one request."""

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                told = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *told]
            await send(message)

        rest = self._admit(scope) if scope["type"] == "http" else None
        if rest is None:
            refusal = PlainTextResponse("Not found. Use the address that bottlegan view printed.", 404)
            await refusal(scope, receive, send_guarded)
            return
        await self.app({**scope, "path": rest, "raw_path": rest.encode(), "root_path": ""}, receive, send_guarded)

    def _admit(self, scope: Scope) -> str | None:
        """Return the path after the token, if the request may pass."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self.hosts:  # another name that leads here belongs to somebody else's page
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
