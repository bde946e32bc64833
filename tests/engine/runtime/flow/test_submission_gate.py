"""Requests that would be refused are refused here, without a call."""

import asyncio

import pytest

from engine.errors import Overloaded
from engine.runtime.flow.submission_gate import BELIEVED_S, SubmissionGate
from engine.runtime.messages import Verdict
from engine.types import Refusal, Terms
from tests.fakes.loop_clock import LoopClock

A, B = Terms(account=b"a"), Terms(account=b"b")
FULL = Refusal(code="queue_full", message="", retry_after_s=9.0)


class Submission:
    """One that is on its way until it has its verdict."""

    def __init__(self, gate: SubmissionGate, terms: Terms = A) -> None:
        self._gate, self._terms = gate, terms
        self.is_sent = False
        self._verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self._gate.passing(self._terms):
            self.is_sent = True
            self._gate.hear(self._terms, await self._verdict)

    async def ends(self, room: int, replica: str = "r", refusal: Refusal | None = None) -> None:
        self._verdict.set_result(Verdict(replica=replica, room=room, refusal=refusal))
        await self.task


async def submissions(gate: SubmissionGate, count: int, terms: Terms = A) -> list[Submission]:
    made = [Submission(gate, terms) for _ in range(count)]
    await asyncio.sleep(0)
    return made


async def test_few_are_on_their_way_and_the_others_follow_in_order() -> None:
    gate = SubmissionGate(2)
    first, second, third, fourth = await submissions(gate, 4)
    [other] = await submissions(gate, 1, B)
    assert [each.is_sent for each in (first, second, third, fourth, other)] == [1, 1, 0, 0, 1]
    await second.ends(room=-1)
    await asyncio.sleep(0)
    assert [third.is_sent, fourth.is_sent] == [True, False]
    for each in (first, third, fourth, other):
        await each.ends(room=-1)


async def test_what_waits_beyond_the_room_is_refused_the_latest_first() -> None:
    gate = SubmissionGate(2)
    first, second, third, fourth, fifth = await submissions(gate, 5)
    await first.ends(room=2, refusal=FULL)
    with pytest.raises(Overloaded) as refused:
        await fifth.task
    assert refused.value.retry_after_s == 9.0
    with pytest.raises(Overloaded):
        await fourth.task
    for each in (second, third):
        await asyncio.sleep(0)
        assert each.is_sent
        await each.ends(room=-1)


async def test_a_full_replica_is_not_asked_again_for_a_moment(clock: LoopClock) -> None:
    gate = SubmissionGate()
    gate.check(A.account)
    [first] = await submissions(gate, 1)
    await first.ends(room=0, refusal=FULL)
    with pytest.raises(Overloaded) as refused:
        gate.check(A.account)
    assert refused.value.retry_after_s == 9.0
    [second] = await submissions(gate, 1)
    with pytest.raises(Overloaded):
        await second.task
    # another account may have room
    gate.check(B.account)
    await clock.advance(BELIEVED_S + 0.01)
    gate.check(A.account)


async def test_who_would_wait_for_less_says_nothing_of_others() -> None:
    gate = SubmissionGate()
    patient, hasty = Terms(max_wait_s=30.0), Terms(max_wait_s=0.1)
    [first] = await submissions(gate, 1, patient)
    [second] = await submissions(gate, 1, hasty)
    await second.ends(room=0, refusal=FULL)
    gate.check(b"")
    await first.ends(room=0, refusal=FULL)
    with pytest.raises(Overloaded):
        gate.check(b"")


async def test_the_rooms_of_replicas_add_up() -> None:
    gate = SubmissionGate()
    first, second = await submissions(gate, 2)
    await first.ends(room=0, replica="r", refusal=FULL)
    await second.ends(room=1, replica="s")
    gate.check(A.account)
    [third] = await submissions(gate, 1)
    with pytest.raises(Overloaded):
        gate.check(A.account)
    await third.ends(room=-1)


async def test_who_waits_for_a_turn_waits_no_longer_than_it_may(clock: LoopClock) -> None:
    gate = SubmissionGate(1)
    [first] = await submissions(gate, 1)
    [second] = await submissions(gate, 1, Terms(account=b"a", max_wait_s=2.0))
    await clock.advance(2.1)
    with pytest.raises(Overloaded):
        await second.task
    await first.ends(room=-1)


@pytest.mark.parametrize("has_turn", [False, True])
async def test_who_goes_away_gives_its_place_to_the_next(has_turn: bool) -> None:
    gate = SubmissionGate(1)
    first, second, third = await submissions(gate, 3)
    if has_turn:
        first._verdict.set_result(Verdict(replica="r"))
        # the second has the place now, and has not run since
        await asyncio.sleep(0)
        assert first.task.done()
    second.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second.task
    if not has_turn:
        await first.ends(room=-1)
    await asyncio.sleep(0)
    assert third.is_sent
    await third.ends(room=-1)
    [fourth] = await submissions(gate, 1)
    assert fourth.is_sent
    await fourth.ends(room=-1)
