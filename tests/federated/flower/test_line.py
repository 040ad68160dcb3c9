"""The line between the two ends of a simulation; `test_engine.py` and `test_simulation.py` run federations over it."""

import inspect
from importlib import import_module
from queue import Queue
from threading import Event, Thread
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs pip install 'bottlegan[federated]'")

from bottlegan.federated.flower import engine

PATIENCE = 60.0


class State:
    """Flower's: messages by node, and the answers that were stored."""

    def __init__(self) -> None:
        self.messages: dict[int, list[str]] = {1: ["a", "b"], 2: ["c"]}
        self.answers: Queue[str] = Queue()

    def get_message_ins(self, node_id: int, limit: int) -> list[str]:
        there = self.messages.get(node_id, [])
        return [there.pop(0) for _ in there[:limit]]

    def store_message_res(self, answer: str) -> None:
        self.answers.put(answer)


def test_messages_are_handed_out_when_they_are_sent_and_answers_end_a_wait() -> None:
    line, state, stop = engine.Line(), State(), Event()
    handed, answers = Queue[Any](), Queue[Any]()
    threads = [
        Thread(target=line.hand_out, args=(state, handed, {1: 0, 2: 1}, stop)),
        Thread(target=line.take_in, args=(state, answers, stop)),
    ]
    for thread in threads:
        thread.start()
    try:
        for node in (1, 2, 1, 3):  # there is nothing for 3, as if it could not be sent
            line.send(node)
        assert [handed.get(timeout=PATIENCE) for _ in range(3)] == ["a", "c", "b"]
        answers.put("x")
        line.wait(PATIENCE)
        assert state.answers.get(timeout=PATIENCE) == "x"
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert handed.empty()


def test_flower_uses_the_line_and_gets_its_own_back() -> None:
    flowers: Any = import_module("flwr.server.superlink.fleet.vce.vce_api")
    rays: Any = import_module("flwr.server.superlink.fleet.vce.backend.raybackend")
    before = flowers.add_messages_to_queue, flowers.put_message_into_state, rays.RayBackend
    with engine.connected() as line:
        assert flowers.add_messages_to_queue == line.hand_out
        assert flowers.put_message_into_state == line.take_in
        assert rays.RayBackend.__mro__[1] is before[2]
    assert (flowers.add_messages_to_queue, flowers.put_message_into_state, rays.RayBackend) == before

    # In the version that is installed, they are what it runs, with these arguments.
    text = inspect.getsource(flowers.run_api)
    assert "target=add_messages_to_queue" in text
    assert "target=put_message_into_state" in text
    for theirs, ours in zip(before[:2], (engine.Line.hand_out, engine.Line.take_in), strict=True):
        assert list(inspect.signature(theirs).parameters) == list(inspect.signature(ours).parameters)[1:]
    assert "import RayBackend" in inspect.getsource(flowers.start_vce)
