from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.command.client.fake_server import FakeServer, fake_server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeServer]:
    """A server that no folder of a server names."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with fake_server() as fake:
        yield fake
