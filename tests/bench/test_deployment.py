import socket

import pytest

from bottlegan.bench.deployment import reserve_port


def bind(port: int, reuse: bool) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        server.bind(("127.0.0.1", port))
        server.listen(1)


def test_a_reserved_port_is_given_to_a_server_and_to_nobody_by_chance() -> None:
    ports = [int(reserve_port()) for _ in range(50)]
    assert len(set(ports)) == len(ports)
    with pytest.raises(OSError, match="in use"):
        bind(ports[0], reuse=False)
    bind(ports[0], reuse=True)  # as servers do
