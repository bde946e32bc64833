"""Requests that would be refused are refused here, without a call."""

import asyncio
import random

import pytest

from engine.errors import Overloaded
from engine.runtime.flow.submission_gate import BELIEVED_S, FORGOTTEN_S, SPARE, SubmissionGate
from engine.runtime.messages import Verdict
from engine.types import Refusal, Terms
from tests.fakes.loop_clock import LoopClock

A, B = Terms(account=b"a"), Terms(account=b"b")
# of a call, there and back each
ON_ITS_WAY_S = 0.02
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

    async def ends(
        self,
        room: float | None,
        replica: str = "r",
        refusal: Refusal | None = None,
        opens_per_s: float = 0.0,
    ) -> None:
        self._verdict.set_result(
            Verdict(
                replica=replica,
                room=room,
                refusal=refusal,
                opens_per_s=opens_per_s,
                retry_after_s=9.0,
            )
        )
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
    await second.ends(room=None)
    await asyncio.sleep(0)
    assert [third.is_sent, fourth.is_sent] == [True, False]
    for each in (first, third, fourth, other):
        await each.ends(room=None)


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
        await each.ends(room=None)


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
    # one at a time
    third, fourth = await submissions(gate, 2)
    assert [third.is_sent, fourth.is_sent] == [True, False]
    with pytest.raises(Overloaded):
        await fourth.task
    await clock.advance(FORGOTTEN_S)
    gate.check(A.account)
    await third.ends(room=None)


async def test_places_are_taken_as_they_open(clock: LoopClock) -> None:
    gate = SubmissionGate()
    [first] = await submissions(gate, 1)
    # the replica is two beyond its limit
    await first.ends(room=-2, refusal=FULL, opens_per_s=10.0)
    await clock.advance((2 + SPARE) / 10.0 + 0.09)
    with pytest.raises(Overloaded):
        gate.check(A.account)
    await clock.advance(0.02)
    gate.check(A.account)
    [second] = await submissions(gate, 1)
    with pytest.raises(Overloaded):
        gate.check(A.account)
    await second.ends(room=3, opens_per_s=10.0)
    await clock.advance(BELIEVED_S + 0.01)
    # it had room, and that was long ago
    many = await submissions(gate, 9)
    assert all(each.is_sent for each in many)
    for each in many:
        await each.ends(room=None)


class Replica:
    """One whose queue holds ten requests of an account, and where some begin each second.

    Attributes:
        num_asked, num_refused: submissions, and those of them that were too many.
        num_missed: requests that could have begun and of which there was none.
    """

    def __init__(self, clock: LoopClock, begins_per_s: float) -> None:
        self._clock, self._begins_per_s = clock, begins_per_s
        self._rng = random.Random(0)
        self._num_waiting = 10
        self._next_s = clock.now_s
        self.num_asked = self.num_refused = self.num_missed = 0

    def verdict(self) -> Verdict:
        """Accept or refuse one more."""
        while self._next_s <= self._clock.now_s:
            self._next_s += self._rng.uniform(0.5, 1.5) / self._begins_per_s
            self.num_missed += not self._num_waiting
            self._num_waiting = max(0, self._num_waiting - 1)
        self.num_asked += 1
        is_full = self._num_waiting >= 10
        self.num_refused += is_full
        self._num_waiting += not is_full
        return Verdict(
            replica="r",
            refusal=FULL if is_full else None,
            room=10.0 - self._num_waiting,
            opens_per_s=self._begins_per_s,
        )


async def test_of_an_overload_nearly_all_is_refused_without_a_call(clock: LoopClock) -> None:
    gate, replica = SubmissionGate(), Replica(clock, begins_per_s=6.0)
    num_refused_here = 0
    on_their_way: list[asyncio.Task[None]] = []

    async def ask() -> None:
        nonlocal num_refused_here
        try:
            async with gate.passing(A):
                await asyncio.sleep(ON_ITS_WAY_S)
                verdict = replica.verdict()
                await asyncio.sleep(ON_ITS_WAY_S)
                gate.hear(A, verdict)
        except Overloaded:
            num_refused_here += 1

    # six times as many as begin, for half a minute
    for _ in range(1080):
        on_their_way.append(asyncio.create_task(ask()))
        await clock.advance(1 / 36)
    await clock.advance(0.1)
    await clock.advance(0.1)
    await asyncio.gather(*on_their_way)
    assert replica.num_missed == 0
    assert replica.num_asked - replica.num_refused > 0.95 * 6 * 30
    assert num_refused_here > 800
    # each of them has waited for a call
    assert replica.num_refused < 0.01 * num_refused_here


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
    await third.ends(room=None)


async def test_who_waits_for_a_turn_waits_no_longer_than_it_may(clock: LoopClock) -> None:
    gate = SubmissionGate(1)
    [first] = await submissions(gate, 1)
    [second] = await submissions(gate, 1, Terms(account=b"a", max_wait_s=2.0))
    await clock.advance(2.1)
    with pytest.raises(Overloaded):
        await second.task
    await first.ends(room=None)


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
        await first.ends(room=None)
    await asyncio.sleep(0)
    assert third.is_sent
    await third.ends(room=None)
    [fourth] = await submissions(gate, 1)
    assert fourth.is_sent
    await fourth.ends(room=None)
