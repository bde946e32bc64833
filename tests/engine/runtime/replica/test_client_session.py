import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from engine.runtime.messages import OUTPUTS
from engine.runtime.outputs import failure, idle_stats
from engine.runtime.replica.client_session import (
    ASK_PERIOD_S,
    SILENT,
    SLOW,
    ClientLimits,
    ClientSession,
)
from engine.types import Capacity
from tests.fakes.loop_clock import LoopClock, settle
from tests.fakes.stream_reader import StreamReader

STATS = idle_stats(Capacity(num_blocks=2, block_size=4, num_rows=1))
LEASE_S, IDLE_S, COALESCE_S = 100.0, 10.0, 1.0
FORGIVEN_S = 300.0


class Watched:
    """A session and why its client was given up."""

    def __init__(
        self,
        *,
        window_bytes: int = 1 << 20,
        max_request_bytes: int = 1 << 20,
        coalesce_s: float = 0.0,
        part_s: float | None = None,
        is_alive: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.lost: list[str] = []
        limits = ClientLimits(
            lease_s=LEASE_S,
            forgiven_s=FORGIVEN_S,
            idle_s=IDLE_S,
            window_bytes=window_bytes,
            max_request_bytes=max_request_bytes,
            coalesce_s=coalesce_s,
            part_s=part_s,
        )
        self.full: list[int] = []
        self.session = ClientSession(
            limits, on_lost=self.lost.append, on_full=self._end, is_alive=is_alive
        )

    def read(self) -> StreamReader:
        return StreamReader(self.session.stream())

    def _end(self, request_id: int) -> None:
        self.full.append(request_id)
        self.session.open.close(request_id, 0)

    async def put(self, *request_ids: int) -> None:
        self.session.put(message(*request_ids), request_ids)
        await settle()


def message(*request_ids: int) -> bytes:
    return OUTPUTS.encode(failure([(request_id, 0) for request_id in request_ids], STATS))


@pytest.fixture
async def watched(clock: LoopClock) -> AsyncIterator[Watched]:
    watched = Watched()
    yield watched
    watched.session.close("given up")


@pytest.fixture
async def gathering(clock: LoopClock) -> AsyncIterator[Watched]:
    """A session that gathers; its first batch has been taken and later ones are to wait."""
    watched = Watched(coalesce_s=COALESCE_S)
    watched.session.opened(1, 1)
    yield watched
    watched.session.close("given up")


async def test_one_batch_takes_everything_queued(watched: Watched) -> None:
    await watched.put(1)
    await watched.put(2, 3)
    reader = watched.read()
    await settle()
    await watched.put(4)
    assert reader.batches == [[[1], [2, 3]], [[4]]]


async def test_the_stream_ends_itself_when_nothing_has_been_open_for_long(
    watched: Watched, clock: LoopClock
) -> None:
    reader = watched.read()
    await clock.advance(0.9 * IDLE_S)
    assert not reader.has_ended
    await clock.advance(0.2 * IDLE_S)
    assert (reader.has_ended, reader.error, reader.batches) == (True, None, [])


async def test_the_stream_stays_while_a_request_is_open(watched: Watched, clock: LoopClock) -> None:
    reader = watched.read()
    # the request comes while the stream waits for its end
    await clock.advance(0.5 * IDLE_S)
    watched.session.opened(1, 1)
    await clock.advance(2 * IDLE_S)
    assert (reader.has_ended, reader.batches) == (False, [])
    await watched.put(1)
    assert reader.batches == [[[1]]]


async def test_a_second_stream_takes_over(watched: Watched) -> None:
    watched.session.opened(1, 1)
    first = watched.read()
    await settle()
    second = watched.read()
    await settle()
    assert (first.has_ended, first.error) == (True, None)
    await watched.put(7)
    assert (first.batches, second.batches) == ([], [[[7]]])


@pytest.mark.parametrize("was_closed", [False, True])
async def test_a_closed_mailbox_ends_every_stream_with_its_reason(
    watched: Watched, clock: LoopClock, was_closed: bool
) -> None:
    watched.session.opened(1, 1)
    if was_closed:
        watched.session.close("given up")
    reader = watched.read()
    await settle()
    if not was_closed:
        watched.session.close("given up")
        await settle()
    assert str(reader.error) == "given up"
    await clock.advance(2 * LEASE_S)
    assert watched.lost == []


async def test_a_client_that_never_comes_lapses(watched: Watched, clock: LoopClock) -> None:
    await clock.advance(0.9 * LEASE_S)
    assert watched.lost == []
    await clock.advance(0.2 * LEASE_S)
    assert watched.lost == [SILENT]


async def test_a_request_and_a_stream_begin_the_lease_anew(
    watched: Watched, clock: LoopClock
) -> None:
    await clock.advance(0.9 * LEASE_S)
    watched.session.opened(1, 1)
    await clock.advance(0.9 * LEASE_S)
    watched.read()
    await clock.advance(0.9 * LEASE_S)
    assert watched.lost == []
    await clock.advance(0.2 * LEASE_S)
    assert watched.lost == [SILENT]


async def test_renewal_does_not_help_a_client_that_is_not_attached(
    watched: Watched, clock: LoopClock
) -> None:
    watched.session.opened(1, 1)
    await clock.advance(0.9 * LEASE_S)
    watched.session.renew(0)
    await clock.advance(0.2 * LEASE_S)
    assert watched.lost == [SILENT]


async def test_renewal_does_not_help_a_client_whose_stream_has_ended(
    watched: Watched, clock: LoopClock
) -> None:
    watched.read()
    await clock.advance(2 * IDLE_S)
    watched.session.opened(1, 1)
    await clock.advance(0.9 * LEASE_S)
    watched.session.renew(0)
    await clock.advance(0.2 * LEASE_S)
    assert watched.lost == [SILENT]


async def test_renewal_keeps_the_lease_of_an_attached_client(
    watched: Watched, clock: LoopClock
) -> None:
    watched.session.opened(1, 1)
    first = watched.read()
    await settle()
    reader = watched.read()
    for _ in range(10):
        await clock.advance(0.9 * LEASE_S)
        watched.session.renew(0)
    # the end of the stream before it is not this one's
    assert first.has_ended
    assert watched.lost == []
    await watched.put(1)
    assert reader.batches == [[[1]]]
    await clock.advance(0.9 * LEASE_S)
    assert watched.lost == []
    await clock.advance(0.2 * LEASE_S)
    assert watched.lost == [SILENT]


class Process:
    """The process of a client."""

    def __init__(self) -> None:
        self.lives = True
        self.num_asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def is_alive(self) -> bool:
        self.num_asked += 1
        await self.may_answer.wait()
        return self.lives


@pytest.fixture
async def process(clock: LoopClock) -> Process:
    return Process()


@pytest.fixture
async def known(process: Process) -> AsyncIterator[Watched]:
    """A client with an open request, whose process can be asked for."""
    watched = Watched(is_alive=process.is_alive)
    watched.session.opened(1, 1)
    watched.read()
    await settle()
    yield watched
    watched.session.close("given up")


async def test_a_silent_client_is_forgiven_while_its_process_lives(
    known: Watched, process: Process, clock: LoopClock
) -> None:
    await clock.advance(0.9 * LEASE_S)
    assert process.num_asked == 0
    for _ in range(100):
        if process.num_asked < 3:
            await clock.advance(LEASE_S / 10)
    assert (known.lost, process.num_asked) == ([], 3)
    known.session.renew(0)
    await clock.advance(0.9 * LEASE_S)
    assert (known.lost, process.num_asked) == ([], 3)
    process.lives = False
    await clock.advance(0.2 * LEASE_S)
    assert (known.lost, process.num_asked) == ([SILENT], 4)


async def test_a_silent_client_is_not_forgiven_for_ever(known: Watched, clock: LoopClock) -> None:
    begin_s = clock.now_s
    while not known.lost and clock.now_s - begin_s < 2 * FORGIVEN_S:
        await clock.advance(ASK_PERIOD_S)
    assert FORGIVEN_S <= clock.now_s - begin_s <= FORGIVEN_S + 2 * ASK_PERIOD_S


async def test_a_client_that_renews_while_its_process_is_asked_for_is_kept(
    known: Watched, process: Process, clock: LoopClock
) -> None:
    process.may_answer.clear()
    await clock.advance(LEASE_S)
    known.session.renew(0)
    process.lives = False
    process.may_answer.set()
    await settle()
    assert known.lost == []
    await clock.advance(LEASE_S)
    assert known.lost == [SILENT]


async def test_a_client_without_requests_is_not_asked_for(
    known: Watched, process: Process, clock: LoopClock
) -> None:
    known.session.open.clear()
    await clock.advance(LEASE_S)
    assert (known.lost, process.num_asked) == ([SILENT], 0)


async def test_a_session_that_is_closed_asks_for_nothing(
    known: Watched, process: Process, clock: LoopClock
) -> None:
    process.may_answer.clear()
    await clock.advance(LEASE_S)
    known.session.close("given up")
    process.may_answer.set()
    process.lives = False
    await clock.advance(2 * LEASE_S)
    assert (known.lost, process.num_asked) == ([], 1)


ONE, TWO = len(message(1)), len(message(1, 2))


async def test_of_a_client_without_a_stream_each_request_is_kept_up_to_its_bound() -> None:
    watched = Watched(max_request_bytes=3 * ONE)
    for request_id in (1, 2):
        watched.session.opened(request_id, 1)
    for _ in range(3):
        await watched.put(1)
    assert watched.full == []
    # the rows of another client's request count for nobody here
    await watched.put(9)
    await watched.put(2)
    assert watched.full == []
    await watched.put(1)
    assert (watched.full, watched.lost) == ([1], [])
    # what had come of it is there, and the other request goes on
    reader = watched.read()
    await settle()
    await watched.put(2)
    assert reader.batches == [[[1]] * 3 + [[9], [2], [1]], [[2]]]
    watched.session.close("given up")


async def test_no_more_than_the_window_is_on_its_way() -> None:
    watched = Watched(window_bytes=2 * ONE, max_request_bytes=4 * TWO)
    for request_id in (1, 2):
        watched.session.opened(request_id, 1)
    reader = watched.read()
    await settle()
    for _ in range(20):
        await watched.put(1)
        watched.session.renew(reader.num_bytes)
    assert len(reader.batches) == 20
    received = reader.num_bytes
    for _ in range(8):
        await watched.put(1, 2)
        watched.session.renew(received)
    # two messages filled the window
    assert len(reader.batches) == 22
    assert (watched.full, watched.lost) == ([], [])
    watched.session.renew(reader.num_bytes)
    await settle()
    assert [len(batch) for batch in reader.batches[22:]] == [6]
    # and what has gone counts no more
    for _ in range(3):
        await watched.put(1, 2)
    assert watched.full == []
    watched.session.close("given up")


async def test_who_has_too_much_waiting_is_ended_and_no_other() -> None:
    watched = Watched(window_bytes=1, max_request_bytes=3 * ONE)
    for request_id in (1, 2):
        watched.session.opened(request_id, 1)
    watched.read()
    await settle()
    await watched.put(1)
    for _ in range(3):
        await watched.put(1)
        await watched.put(2)
    assert watched.full == []
    await watched.put(1)
    assert (watched.full, watched.lost) == ([1], [])
    watched.session.close("given up")


async def test_a_client_that_reads_nothing_for_long_is_given_up(clock: LoopClock) -> None:
    watched = Watched(window_bytes=1)
    watched.session.opened(1, 1)
    reader = watched.read()
    await settle()
    for _ in range(4):
        # it renews and reads
        await watched.put(1)
        watched.session.renew(reader.num_bytes)
        await clock.advance(0.9 * LEASE_S)
    received = reader.num_bytes
    await watched.put(1)
    for _ in range(3):
        watched.session.renew(received)
        assert watched.lost == []
        await clock.advance(0.9 * LEASE_S)
    watched.session.renew(received)
    await clock.advance(LEASE_S)
    assert watched.lost == [SLOW]
    watched.session.close("given up")


async def test_a_new_stream_does_not_answer_for_what_an_earlier_one_lost() -> None:
    watched = Watched(window_bytes=3 * ONE, max_request_bytes=2 * ONE)
    watched.session.opened(1, 1)
    for late_bytes in (0, 1 << 30):
        for _ in range(10):
            reader = watched.read()
            await settle()
            await watched.put(1)
            # a call that was made for the earlier stream, which had more
            watched.session.renew(late_bytes)
            assert len(reader.batches) == 1
    # nor does it make this one's credit larger
    for _ in range(5):
        await watched.put(1)
    assert watched.full == []
    await watched.put(1)
    assert watched.full == [1]
    watched.session.close("given up")


async def test_later_outputs_are_gathered_and_the_first_of_a_request_goes_at_once(
    gathering: Watched, clock: LoopClock
) -> None:
    gathering.session.opened(2, 1)
    reader = gathering.read()
    await settle()
    await gathering.put(1)
    assert reader.batches == [[[1]]]
    await gathering.put(1)
    await gathering.put(1)
    assert len(reader.batches) == 1
    await gathering.put(1, 2)
    assert reader.batches[1:] == [[[1], [1], [1, 2]]]
    # it was the first only once
    await gathering.put(2)
    assert len(reader.batches) == 2


async def test_gathered_outputs_go_when_their_time_has_come(
    gathering: Watched, clock: LoopClock
) -> None:
    reader = gathering.read()
    await settle()
    await gathering.put(1)
    for count in range(1, 4):
        await clock.advance(0.5 * COALESCE_S)
        await gathering.put(1)
        await gathering.put(1)
        assert len(reader.batches) == count
        await clock.advance(0.5 * COALESCE_S)
        assert reader.batches[count:] == [[[1], [1]]]
    # after a pause there is nothing to wait for
    await clock.advance(COALESCE_S)
    await gathering.put(1)
    assert len(reader.batches) == 5


async def test_an_urgent_batch_begins_the_time_of_gathering_anew(
    gathering: Watched, clock: LoopClock
) -> None:
    reader = gathering.read()
    await settle()
    await gathering.put(1)
    await gathering.put(1)
    await gathering.put(1)
    await clock.advance(0.5 * COALESCE_S)
    gathering.session.opened(2, 1)
    await gathering.put(2)
    assert reader.batches[1:] == [[[1], [1], [2]]]
    await gathering.put(1)
    await clock.advance(0.6 * COALESCE_S)
    assert len(reader.batches) == 2
    await clock.advance(0.5 * COALESCE_S)
    assert len(reader.batches) == 3


@pytest.mark.parametrize(("num_open", "gathers_s"), [(1, 0.1), (4, 0.4), (40, COALESCE_S)])
async def test_few_requests_have_their_output_sooner_than_many(
    clock: LoopClock, num_open: int, gathers_s: float
) -> None:
    watched = Watched(coalesce_s=COALESCE_S, part_s=0.1)
    for request_id in range(num_open):
        watched.session.opened(request_id, 1)
    reader = watched.read()
    await settle()
    await watched.put(*range(num_open))
    await watched.put(0)
    await clock.advance(0.9 * gathers_s)
    assert len(reader.batches) == 1
    await clock.advance(0.2 * gathers_s)
    assert len(reader.batches) == 2
    watched.session.close("given up")


async def test_a_stream_that_ends_itself_first_gives_what_was_gathered(clock: LoopClock) -> None:
    watched = Watched(coalesce_s=10 * IDLE_S)
    reader = watched.read()
    await settle()
    await watched.put(1)
    await watched.put(1)
    assert reader.batches == [[[1]]]
    await clock.advance(2 * IDLE_S)
    assert reader.batches == [[[1]], [[1]]]
    await clock.advance(2 * IDLE_S)
    assert (reader.has_ended, reader.error) == (True, None)
    watched.session.close("given up")
