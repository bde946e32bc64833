import random
import socket

import pytest

from load_tests.free_port import free_port


def test_no_outgoing_connection_takes_the_port_meanwhile() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first_of_system = int(file.read().split()[0])
    assert all(free_port() < first_of_system for _ in range(20))


def test_the_common_generator_does_not_choose() -> None:
    ports = set()
    for _ in range(4):
        random.seed(0)
        ports.add(free_port())
    assert len(ports) > 1


def test_a_port_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        chosen = iter((taken, free_port()))
        generator = random.SystemRandom()
        monkeypatch.setattr(generator, "randint", lambda first, last: next(chosen))
        monkeypatch.setattr(random, "SystemRandom", lambda: generator)
        assert free_port() != taken
