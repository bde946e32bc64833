"""Requests whose heads or bytes are at fault, beside streams that come as they do without them."""

import asyncio

import httpx
import pytest

from tests.app.api.bad_input.framed_requests import framed_requests
from tests.app.api.bad_input.odd_requests import ODD_REQUESTS, OddRequest
from tests.deployed.bad_requests.test_bad_bodies import streams
from tests.deployed.bad_requests.test_odd_requests import answer_to
from tests.deployed.serve_run import KEY, ODD, Deployed

pytestmark = [pytest.mark.ray, pytest.mark.slow]
NUM_AT_ONCE = 20
# rows behind which the way to the server is closed: it may wait for more of what never comes
CUT_OFF = (23, 24, 77, 78, 79, 81)


async def _deviation(deployed: Deployed, odd: OddRequest) -> list[str]:
    answer = await answer_to(deployed, odd.sent, ends=odd.number in CUT_OFF)
    answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    status = int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0
    if status not in odd.right or b"Traceback" in answer:
        return [f"{odd.number} {odd.words}: {status} instead of {odd.right}, {answer[:200]!r}"]
    return []


async def test_streams_beside_faulty_heads_are_as_without(
    odd: httpx.AsyncClient, deployed: Deployed
) -> None:
    quiet = await streams(odd)
    requests = framed_requests(ODD, KEY) + ODD_REQUESTS
    good, found = asyncio.ensure_future(streams(odd)), list[str]()
    for start in range(0, len(requests), NUM_AT_ONCE):
        part = requests[start : start + NUM_AT_ONCE]
        for deviations in await asyncio.gather(*(_deviation(deployed, one) for one in part)):
            found += deviations
        if good.done():
            assert await good == quiet
            good = asyncio.ensure_future(streams(odd))
    assert await good == quiet
    assert not found
