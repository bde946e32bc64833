"""Requests that come together begin a few in each turn of the event loop, in their order."""

import asyncio
from itertools import pairwise

from app.http.flow.arrivals import _NUM_AT_ONCE, Arrivals


async def test_a_request_that_comes_alone_does_not_wait() -> None:
    begin = Arrivals().begin()
    try:
        begin.send(None)
    except StopIteration:
        return
    raise AssertionError("it has waited")


async def test_of_many_a_few_begin_in_a_turn_in_their_order() -> None:
    arrivals = Arrivals()
    begun: list[int] = []
    ends: list[int] = []

    async def request(number: int) -> None:
        await arrivals.begin()
        begun.append(number)

    def note_turn() -> None:
        ends.append(len(begun))
        if len(begun) < num_requests:
            asyncio.get_running_loop().call_soon(note_turn)

    num_requests = 3 * _NUM_AT_ONCE + 1
    requests = [asyncio.create_task(request(number)) for number in range(num_requests)]
    note_turn()
    await asyncio.gather(*requests)
    assert begun == list(range(num_requests))
    turns = [after - before for before, after in pairwise(ends)]
    assert max(turns) == _NUM_AT_ONCE


async def test_who_comes_later_does_not_overtake() -> None:
    arrivals = Arrivals()
    begun: list[str] = []

    async def request(name: str) -> None:
        await arrivals.begin()
        begun.append(name)

    first = [asyncio.create_task(request("first")) for _ in range(2 * _NUM_AT_ONCE + 1)]
    await asyncio.sleep(0)
    assert len(begun) == _NUM_AT_ONCE
    await asyncio.gather(request("late"), *first)
    assert begun[-1] == "late"


async def test_one_that_leaves_while_it_waits_takes_no_place() -> None:
    arrivals = Arrivals()
    begun: list[int] = []

    async def request(number: int) -> None:
        await arrivals.begin()
        begun.append(number)

    num_requests = 3 * _NUM_AT_ONCE
    requests = [asyncio.create_task(request(number)) for number in range(num_requests)]
    await asyncio.sleep(0)
    left = requests[_NUM_AT_ONCE : 2 * _NUM_AT_ONCE]
    for task in left:
        task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    # the turn that would have been theirs
    assert len(begun) == 2 * _NUM_AT_ONCE
    await asyncio.gather(*requests, return_exceptions=True)
    assert begun == [*range(_NUM_AT_ONCE), *range(2 * _NUM_AT_ONCE, num_requests)]
