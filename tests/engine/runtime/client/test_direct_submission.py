"""Requests on the way of the outputs: to which replica, and when not."""

from collections.abc import Iterator
from typing import Any

import pytest

from engine.errors import EngineError
from engine.runtime.client.direct_submission import DirectSubmission
from engine.runtime.messages import REQUESTS
from engine.runtime.routing import known_replicas
from engine.runtime.routing.replica_load import ReplicaLoad
from engine.types import Request, SamplingParams, int32

REQUEST = REQUESTS.encode(
    Request(request_id=1, prompt=int32([5] * 9), sampling=SamplingParams(max_tokens=1))
)
KNOWN: dict[str, Any] = {"tokens_per_s": 10.0, "total_tokens": 99, "free_tokens": 99}
FREE = ReplicaLoad(**KNOWN).to_stats()
BUSY = ReplicaLoad(**(KNOWN | {"waiting_tokens": 50.0})).to_stats()


class FakeOpenStream:
    """Answers as a test says."""

    def __init__(self, answer: bytes | EngineError | None) -> None:
        self._answer = answer

    async def submit(self, request: bytes) -> bytes | None:
        assert request == REQUEST
        if isinstance(self._answer, EngineError):
            raise self._answer
        return self._answer


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    known_replicas.publish({})


async def test_a_request_goes_where_it_is_served_soonest() -> None:
    direct = DirectSubmission()
    known_replicas.publish({"busy": BUSY, "free": FREE})
    with direct.reading("busy") as busy, direct.reading("free") as free:
        busy(FakeOpenStream(b"busy"))
        # not connected there yet: another one is no answer to that
        assert await direct.submit(REQUEST) is None
        free(FakeOpenStream(b"free"))
        assert await direct.submit(REQUEST) == b"free"


@pytest.mark.parametrize("stats", [{}, {"two": FREE}])
async def test_a_replica_that_takes_no_requests_gets_none(stats: dict[str, Any]) -> None:
    direct = DirectSubmission()
    known_replicas.publish(stats)
    with direct.reading("one") as opened:
        opened(FakeOpenStream(b"verdict"))
        assert await direct.submit(REQUEST) is None


async def test_a_stream_that_is_read_no_more_takes_nothing() -> None:
    direct = DirectSubmission()
    known_replicas.publish({"one": FREE})
    with direct.reading("one") as opened:
        assert await direct.submit(REQUEST) is None
        opened(FakeOpenStream(b"verdict"))
        assert await direct.submit(REQUEST) == b"verdict"
    assert await direct.submit(REQUEST) is None


async def test_a_later_stream_of_a_replica_stays() -> None:
    direct = DirectSubmission()
    known_replicas.publish({"one": FREE})
    with direct.reading("one") as later:
        with direct.reading("one") as earlier:
            earlier(FakeOpenStream(b"earlier"))
            later(FakeOpenStream(b"later"))
        assert await direct.submit(REQUEST) == b"later"


async def test_what_the_stream_says_is_said() -> None:
    direct = DirectSubmission()
    known_replicas.publish({"one": FREE})
    with direct.reading("one") as opened:
        opened(FakeOpenStream(None))
        assert await direct.submit(REQUEST) is None
        opened(FakeOpenStream(EngineError("lost")))
        with pytest.raises(EngineError, match="lost"):
            await direct.submit(REQUEST)
