import json

import pytest

from app.command.__main__ import main
from app.command.client.connection import NOT_READY
from load_tests.free_port import free_port
from tests.app.command.client.fake_server import FakeServer


def test_a_ready_server_is_shown_with_its_load(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--url", server.url]) == 0
    out = capsys.readouterr().out
    assert f"{server.url}  ready" in out
    assert "4 running, 2 waiting, 0 swapped; KV 50% of 1,024 tokens; 2 engine replicas" in out


def test_one_that_is_not_ready_or_not_there_has_code_3(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.is_ready = False
    assert main(["status", "--url", server.url, "--json"]) == NOT_READY
    assert json.loads(capsys.readouterr().out)[0]["state"] == "not ready"
    assert main(["status", "--url", f"http://127.0.0.1:{free_port()}"]) == NOT_READY
    assert "no answer" in capsys.readouterr().out
