from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from ray import serve

from load_tests.free_port import free_port
from tests.fakes.scripted_app import NAME, make_application


@pytest.fixture(scope="package")
def serve_url(ray_cluster: None) -> Iterator[str]:
    """Where Serve listens, for applications that come and go."""
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()  # type: ignore[no-untyped-call]


@pytest.fixture(scope="package")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the requests of `url` are recorded."""
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="package")
def url(serve_url: str, traces: Path) -> Iterator[str]:
    """Where the scripted application is, beside those that come and go."""
    serve.run(make_application(traces), name=NAME, route_prefix=f"/{NAME}")
    yield f"{serve_url}/{NAME}"
    serve.delete(NAME)


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the scripted application, which reads no certificates."""
    async with httpx.AsyncClient(base_url=url, timeout=60, verify=False) as client:
        yield client
