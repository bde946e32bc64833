import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from app.command.ports import check_ports
from engine.errors import ConfigError
from load_tests.free_port import free_port


def config(folder: Path, port: int) -> Path:
    path = folder / "serve.yaml"
    path.write_text(f"http_options: {{host: 127.0.0.1, port: {port}}}\napplications: []\n")
    return path


@contextmanager
def listening() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_free_port_is_accepted(tmp_path: Path) -> None:
    check_ports(config(tmp_path, free_port()), {})


def test_who_holds_a_port_and_what_to_do_is_said(tmp_path: Path) -> None:
    with listening() as port:
        path = config(tmp_path, port)
        with pytest.raises(ConfigError) as caught:
            check_ports(path, {})
    assert f"port {port} is held by process {os.getpid()} (" in str(caught.value)
    assert "pytest" in str(caught.value)
    assert f"end it with `kill {os.getpid()}`, or set http_options.port in {path}" in str(
        caught.value
    )


def test_what_a_server_holds_is_ended_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its HAProxy must not be killed, which looks like one that was left behind."""

    def parents(process: psutil.Process) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=lambda: "bash"), SimpleNamespace(name=lambda: "raylet")]

    monkeypatch.setattr(psutil.Process, "parents", parents)
    monkeypatch.setattr(psutil.Process, "name", lambda self: "haproxy")
    with listening() as port:
        path = config(tmp_path, port)
        with pytest.raises(ConfigError, match="of a server that runs; end it with `pagoda stop`"):
            check_ports(path, {})
        monkeypatch.setattr(psutil.Process, "parents", lambda self: [])
        with pytest.raises(ConfigError, match="left behind; end it with `kill"):
            check_ports(path, {})


@pytest.mark.parametrize("name", ["RAY_SERVE_HAPROXY_METRICS_PORT", "RAY_SERVE_HAPROXY_STATS_PORT"])
def test_ports_of_haproxy_count_where_it_is_the_proxy(name: str, tmp_path: Path) -> None:
    path = config(tmp_path, free_port())
    environment = {
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
    }
    with listening() as port:
        environment[name] = str(port)
        check_ports(path, environment)
        environment["RAY_SERVE_ENABLE_HA_PROXY"] = "1"
        with pytest.raises(ConfigError, match=f"or set {name} to another port"):
            check_ports(path, environment)
    check_ports(path, environment)
