"""The live page of the real application."""

import json
from typing import Any

import httpx
import pytest

from tests.deployed.serve_run import BLOCK_SIZE, NUM_BLOCKS

pytestmark = pytest.mark.ray


async def first_frame(http: httpx.AsyncClient) -> dict[str, Any]:
    """The first replica of the first frame that has one."""
    async with http.stream("GET", "/ui/api/stream") as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            content = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
            if isinstance(content, dict) and content.get("replicas"):
                replica: dict[str, Any] = content["replicas"][0]
                return replica
    raise AssertionError("the stream has ended")


async def test_the_page_and_its_numbers_are_served(http: httpx.AsyncClient) -> None:
    page = await http.get("/ui")
    assert page.status_code == 200
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert (await http.get("/ui/app.js")).status_code == 200
    replica = await first_frame(http)
    assert replica["ready"]
    assert (replica["num_blocks"], replica["block_size"]) == (NUM_BLOCKS, BLOCK_SIZE)


async def test_with_keys_it_shows_no_numbers_without_one(odd: httpx.AsyncClient) -> None:
    assert (await odd.get("/ui", headers={"authorization": ""})).status_code == 200
    refused = await odd.get("/ui/api/stream", headers={"authorization": ""})
    assert refused.status_code == 401
    assert (await first_frame(odd))["requests"] == []
