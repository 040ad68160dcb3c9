"""Flower's simulation engine, which idles less between two messages.

The engine looks for new messages ten times a second, and a worker gets its next message only after it has answered one
and that answer has been unpacked. In a round of a second, that was an eighth of the time. Flower has no setting for it.
So a node's number is passed on when its message is sent, and each worker has the next message at hand while it answers.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from queue import Empty, Queue
from threading import Event
from typing import Any

SECONDS = 1.0
"""How often to look whether the simulation has ended."""
AT_HAND = 2
"""Messages that a worker has: one that it answers, and one that it answers next."""


class Line:
    """What the two ends of a simulation, which are threads of this process, tell each other."""

    def __init__(self) -> None:
        """Begin with nothing sent and nothing answered."""
        self._sent: Queue[int] = Queue()
        self._answered = Event()

    def send(self, node: int) -> None:
        """Say that there is a message for a node."""
        self._sent.put(node)

    def wait(self, seconds: float) -> None:
        """Wait until a message is answered, but not longer than this."""
        self._answered.wait(seconds)
        self._answered.clear()

    def hand_out(self, state: Any, queue: Queue[Any], nodes_mapping: Any, f_stop: Event) -> None:
        """Pass messages on to the workers as soon as they are sent. In place of Flower's `add_messages_to_queue`."""
        while not f_stop.is_set():
            try:
                node = self._sent.get(timeout=SECONDS)
            except Empty:
                continue
            for message in state.get_message_ins(node_id=node, limit=1):
                queue.put(message)

    def take_in(self, state: Any, queue: Queue[Any], f_stop: Event) -> None:
        """Store answers as they come. In place of Flower's `put_message_into_state`."""
        while not f_stop.is_set():
            try:
                state.store_message_res(queue.get(timeout=SECONDS))
            except Empty:
                continue
            self._answered.set()


@contextmanager
def connected() -> Iterator[Line]:
    """Run simulations in the block over a line of ours."""
    # By their names: imported here, they would import Ray before it is known how it shall start.
    engine: Any = import_module("flwr.server.superlink.fleet.vce.vce_api")
    rays: Any = import_module("flwr.server.superlink.fleet.vce.backend.raybackend")

    class Backend(rays.RayBackend):  # type: ignore[misc]
        def build(self, app_fn: Any) -> None:
            super().build(app_fn)
            self.pool.pool *= AT_HAND  # a worker that is in the pool twice takes two messages
            self.pool.num_actors *= AT_HAND

    line = Line()
    ours = {"add_messages_to_queue": line.hand_out, "put_message_into_state": line.take_in}
    with _replaced(engine, ours), _replaced(rays, {"RayBackend": Backend}):
        yield line


@contextmanager
def _replaced(module: Any, ours: Mapping[str, object]) -> Iterator[None]:
    """Have a module use other functions in the block, and put its own back."""
    theirs = {name: getattr(module, name) for name in ours}
    vars(module).update(ours)
    try:
        yield
    finally:
        vars(module).update(theirs)
