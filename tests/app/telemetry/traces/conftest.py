from collections.abc import Iterator

import pytest

from tests.app.telemetry.traces.collector import Collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    yield server
    server.close()
