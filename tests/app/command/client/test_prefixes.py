import io
from pathlib import Path

import pytest

from app.command.__main__ import main
from tests.app.command.client.fake_server import FakeServer


def test_prefixes_are_listed_pinned_and_released(
    server: FakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = ["--url", server.url]
    assert main(["prefixes", "list", *where]) == 0
    assert capsys.readouterr().out == "name=p\n"
    path = tmp_path / "text"
    path.write_text("Once")
    assert main(["prefixes", "pin", "p", str(path), "--ttl-s", "5", *where]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("Twice"))
    assert main(["prefixes", "pin", "q", "-", *where]) == 0
    assert server.bodies == [
        {"name": "p", "text": "Once", "ttl_s": 5.0},
        {"name": "q", "text": "Twice"},
    ]
    assert main(["prefixes", "rm", "a b", *where]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "name=/v1/prefixes/a%20b"
    assert main(["prefixes", "pin", "p", str(tmp_path / "none"), *where]) == 1
