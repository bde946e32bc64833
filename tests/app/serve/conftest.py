from collections.abc import Iterator

import pytest
from ray import serve

from load_tests.free_port import free_port


@pytest.fixture(scope="package")
def serve_url(ray_cluster: None) -> Iterator[str]:
    """Where Serve listens, for applications that come and go."""
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()  # type: ignore[no-untyped-call]
