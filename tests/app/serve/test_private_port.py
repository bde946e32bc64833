from typing import Any

import pytest
import ray
from ray.serve._private import replica

from app.serve.private_port import keep_private_port


@pytest.mark.parametrize(
    ("address", "host"),
    [("10.1.2.3", "10.1.2.3"), ("127.0.0.1", "127.0.0.1"), ("fd00::7", "[fd00::7]")],
)
def test_calls_of_other_replicas_come_in_at_the_node_s_own_address(
    address: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def bind(server: Any, given: str) -> int:
        asked.append(given)
        return 7

    monkeypatch.setattr(replica, "add_port_to_grpc_server", bind)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: address)
    keep_private_port()
    # as Serve does
    assert vars(replica)["add_port_to_grpc_server"](object(), "[::]:0") == 7
    assert asked == [f"{host}:0"]


def test_serve_still_opens_its_port_so() -> None:
    names = replica.Replica._on_initialized.__code__
    assert "[::]:0" in names.co_consts
    assert "add_port_to_grpc_server" in names.co_names
