from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.deployed.serve_run import KEY, ODD, Deployed, serve_run


@pytest.fixture(scope="package")
def deployed() -> Iterator[Deployed]:
    with serve_run() as running:
        yield running


# without certificates, which each client would read
OPTIONS: dict[str, Any] = {"timeout": 120, "trust_env": False, "verify": False}


@pytest.fixture
async def http(deployed: Deployed) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the first application, which serves the embedded model to everyone."""
    async with httpx.AsyncClient(base_url=deployed.url, **OPTIONS) as client:
        yield client


@pytest.fixture
async def odd(deployed: Deployed) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the key of the second application, which serves the odd folder."""
    url, headers = deployed.url + ODD, {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, **OPTIONS) as client:
        yield client
