import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from engine.errors import EngineError
from engine.runtime.client.abort_calls import AbortCalls
from engine.types import ALL_CHOICES
from tests.fakes.engine_handle import FakeEngineHandle
from tests.fakes.loop_clock import settle


class Replicas(FakeEngineHandle):
    """Notes each call; none is answered before the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[int, ...], int]] = []
        self.may_end = asyncio.Event()

    async def abort(
        self, replica: str, request_ids: tuple[int, ...], choice: int = ALL_CHOICES
    ) -> None:
        """Answer, or fail, when that is allowed."""
        self.calls.append((replica, request_ids, choice))
        await self.may_end.wait()
        if self.loses_aborts:
            raise EngineError("gone")


@pytest.fixture
async def replicas() -> AsyncIterator[Replicas]:
    made = Replicas()
    yield made
    made.may_end.set()


@pytest.fixture
def aborts(replicas: Replicas) -> AbortCalls:
    return AbortCalls(replicas, asyncio.create_task)


def ends(aborts: AbortCalls, replica: str, *ids: int) -> list["asyncio.Task[None]"]:
    return [asyncio.create_task(aborts.end(replica, each, ALL_CHOICES)) for each in ids]


async def test_many_that_leave_at_once_cost_two_calls(
    aborts: AbortCalls, replicas: Replicas
) -> None:
    first = ends(aborts, "a", *range(100))
    await settle()
    assert replicas.calls == [("a", tuple(range(100)), ALL_CHOICES)]
    # while that one has no answer
    second = ends(aborts, "a", *range(100, 150))
    await settle()
    assert len(replicas.calls) == 1
    assert not any(each.done() for each in first)
    replicas.may_end.set()
    await asyncio.gather(*first, *second)
    assert replicas.calls[1:] == [("a", tuple(range(100, 150)), ALL_CHOICES)]
    await aborts.end("a", 7, ALL_CHOICES)
    assert replicas.calls[2:] == [("a", (7,), ALL_CHOICES)]


async def test_a_replica_does_not_wait_for_another_nor_a_choice_for_anything(
    aborts: AbortCalls, replicas: Replicas
) -> None:
    started = [*ends(aborts, "a", 1), *ends(aborts, "b", 2)]
    started.append(asyncio.create_task(aborts.end("a", 3, 0)))
    await settle()
    assert sorted(replicas.calls) == [
        ("a", (1,), ALL_CHOICES),
        ("a", (3,), 0),
        ("b", (2,), ALL_CHOICES),
    ]
    replicas.may_end.set()
    await asyncio.gather(*started)


async def test_all_hear_of_a_call_that_fails_and_the_next_ones_are_called(
    aborts: AbortCalls, replicas: Replicas
) -> None:
    replicas.loses_aborts = True
    first = ends(aborts, "a", 1, 2)
    await settle()
    second = ends(aborts, "a", 3)
    await settle()
    replicas.may_end.set()
    results = await asyncio.gather(*first, *second, return_exceptions=True)
    assert [type(each) for each in results] == [EngineError] * 3
    assert [ids for _, ids, _ in replicas.calls] == [(1, 2), (3,)]


async def test_what_waits_hears_of_the_end_of_the_caller(replicas: Replicas) -> None:
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[Any, Any, Any]) -> "asyncio.Task[None]":
        tasks.append(asyncio.create_task(work))
        return tasks[-1]

    aborts = AbortCalls(replicas, spawn)
    first = ends(aborts, "a", 1)
    await settle()
    second = ends(aborts, "a", 2)
    await settle()
    tasks[0].cancel()
    await asyncio.wait(first)
    with pytest.raises(EngineError, match="closed"):
        await second[0]
