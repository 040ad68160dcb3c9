"""The server: it listens only on this machine, and sends the page and its data."""

import logging
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from bottlegan.core.errors import InputError
from bottlegan.viewer.guard import Guard, make_token

PAGE = Path(__file__).with_name("page")
FILES = {file.name: file for folder in (PAGE, PAGE / "vendor") for file in folder.iterdir() if file.is_file()}
"""The files that can be requested by name: the shipped ones, and nothing else."""
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
"""Media types by suffix. What a system has registered for `.js` may not be JavaScript."""
HOST = "127.0.0.1"
STOP_SECONDS = 2


def make_app(page: str, routes: Sequence[BaseRoute]) -> Starlette:
    """Return the app that shows `page` first and the other pages by name, and serves `routes`."""
    pages = [Route(f"/{file.stem}", show(name)) for name, file in FILES.items() if file.suffix == ".html"]
    shown = [Route("/", show(page)), *pages, Route("/static/{name}", _send_static), *routes]
    return Starlette(routes=shown, exception_handlers={InputError: _refuse, HTTPException: _fail})


def show(page: str) -> Callable[[Request], Awaitable[Response]]:
    """Return a route function that sends a shipped page."""

    async def send(request: Request) -> Response:
        return _make_response(page)

    return send


@contextmanager
def serving(app: Any, port: int = 0) -> Iterator[str]:
    """Serve an app on this machine while the block runs, and yield its address with the token."""
    token, listening = make_token(), _listen(port)
    port = listening.getsockname()[1]
    server = uvicorn.Server(
        uvicorn.Config(
            Guard(app, token, port),
            lifespan="off",
            ws="none",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
    )
    log = logging.getLogger("uvicorn.error")

    def matters(record: logging.LogRecord) -> bool:
        return not server.should_exit  # unanswered requests do not matter while the server stops

    log.addFilter(matters)
    thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{port}/{token}/"
    finally:
        server.should_exit = True
        thread.join()
        log.removeFilter(matters)
        listening.close()


def _listen(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise InputError(f"port {port} cannot be used ({error}); leave out --port, or give another") from None
    listening.listen()
    return listening


async def _send_static(request: Request) -> Response:
    """Send a shipped file by its name. No path can lead elsewhere."""
    name = request.path_params["name"]
    if name not in FILES:
        raise HTTPException(404, "there is no such file")
    return _make_response(name)


def _make_response(name: str) -> Response:
    # From memory, in the server's own thread: a page has fifteen small files, and a thread for each takes longer.
    return Response(_read_file(name), media_type=TYPES[FILES[name].suffix])


@cache
def _read_file(name: str) -> bytes:
    return FILES[name].read_bytes()


def _refuse(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 422)


def _fail(request: Request, error: Exception) -> Response:
    status, text = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, str(error))
    return JSONResponse({"error": text}, status)
