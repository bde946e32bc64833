import argparse
import os
import ssl
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.command.__main__ import main
from app.command.client.connection import (
    NOT_READY,
    NoServer,
    Refused,
    ServerTarget,
    connected,
    find_target,
    first_line,
)
from app.command.start.server_folder import RunningServer, make_folder
from engine.errors import ConfigError
from load_tests.free_port import free_port
from tests.app.command.client.fake_server import FakeServer


def found(url: str | None, key_file: Path | None = None) -> ServerTarget:
    return find_target(argparse.Namespace(url=url, key_file=key_file))


def test_the_latest_server_of_this_user_is_found_with_its_operator_key(server: FakeServer) -> None:
    assert found(None) == ServerTarget(url="http://127.0.0.1:8000")
    folder = make_folder()
    state = RunningServer(
        pid=os.getpid(),
        created_s=psutil.Process().create_time(),
        url=server.url,
        model="m",
        config="c",
        operator_keys_file=str(folder.write_key()),
    )
    folder.write_state(state)
    target = found(None)
    assert target.url == server.url
    server.operator_key = folder.key_file.read_text().strip()
    assert target.operator_key == server.operator_key
    # somebody else's server never gets it
    assert found("http://127.0.0.1:1").operator_key == ""
    with connected(target) as connection:
        assert "pagoda_requests" in (connection.metrics() or "")
    with connected(ServerTarget(url=server.url)) as connection:
        assert connection.metrics() is None


def test_keys_come_from_a_file_or_a_variable(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGODA_API_KEY", "of-variable")
    assert found(f"{server.url}/v1/").url == server.url
    assert found(server.url).key == "of-variable"
    path = tmp_path / "keys"
    path.write_text("\n of-file \nsecond\n")
    target = found(server.url, path)
    with connected(target) as connection:
        connection.post("/v1/x", {})
    assert server.keys == ["of-file"]
    path.write_text("\n")
    with pytest.raises(ConfigError, match="has no key"):
        first_line(path)


def test_what_goes_wrong_is_told_apart(server: FakeServer) -> None:
    nowhere = ServerTarget(url=f"http://127.0.0.1:{free_port()}")
    hint = "start a server with `pagoda serve`"
    with connected(nowhere) as connection, pytest.raises(NoServer, match=hint):
        connection.get("/v1/models")
    with connected(ServerTarget(url=server.url)) as connection:
        server.failure = 400, "max_tokens is bad"
        with pytest.raises(Refused, match="400: max_tokens is bad"):
            list(connection.stream("/v1/completions", {}))
        server.failure = 401, "no key"
        with pytest.raises(Refused, match="give it with --key-file"):
            connection.post("/v1/completions", {})
        server.failure = 503, "draining"
        with pytest.raises(NoServer, match="is not ready: draining"):
            connection.post("/v1/completions", {})


def test_failures_have_their_exit_codes(
    server: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main(["complete", "x", "--url", f"http://127.0.0.1:{free_port()}"]) == NOT_READY
    server.failure = 400, "bad"
    assert main(["complete", "x", "--url", server.url, "--key-file", "/none"]) == 1
    assert main(["complete", "x", "--url", server.url]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert all(line.startswith("error: ") for line in errors)
    assert len(errors) == 3


def test_certificates_are_read_where_there_is_tls_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    load = ssl.create_default_context

    def note(*args: Any, **options: Any) -> ssl.SSLContext:
        read.append(url)
        return load(*args, **options)

    monkeypatch.setattr("ssl.create_default_context", note)
    for url in ("http://127.0.0.1:1", "https://127.0.0.1:1", "127.0.0.1:1"):
        with connected(ServerTarget(url=url)):
            pass
    assert read == ["https://127.0.0.1:1", "127.0.0.1:1"]
