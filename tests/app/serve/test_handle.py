"""Calls to engine replicas: who is asked, and what becomes of those that do not answer."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from app.serve.handle import CALL_TIMEOUT_S, ServeEngineHandle, ask_all
from app.serve.router import session_of, session_without
from engine.errors import EngineError, EngineUnavailable
from engine.runtime.output_socket.port import OutputOffer, OutputPort
from engine.runtime.routing import known_replicas
from engine.types import ALL_CHOICES
from tests.fakes.loop_clock import LoopClock


class FakeDeployment:
    """Answers as a test says and remembers the calls, each with the session that it was for."""

    def __init__(self, *answers: Any) -> None:
        self.calls: list[tuple[str | None, str, tuple[Any, ...]]] = []
        self._answers = answers
        self._session_id: str | None = None
        self._is_by_reference = True

    def options(
        self,
        *,
        session_id: str | None = None,
        stream: bool = False,
        _by_reference: bool | None = None,
    ) -> "FakeDeployment":
        if _by_reference is not None:
            self._is_by_reference = _by_reference
            return self
        # one list of calls
        pinned = object.__new__(type(self))
        vars(pinned).update(vars(self))
        pinned._session_id = session_id or self._session_id
        return pinned

    def broadcast(self, method: str, *args: Any) -> Any:
        self.calls.append((None, method, args))

        async def results_async(**_: Any) -> list[Any]:
            return list(self._answers)

        return SimpleNamespace(results_async=results_async)

    def __getattr__(self, method: str) -> Any:
        def remote(*args: Any) -> Any:
            assert not self._is_by_reference, "a caller that is frozen would stop the replica"
            self.calls.append((self._session_id, method, args))
            return FakeStream(self) if method == "attach" else self._answer()

        return SimpleNamespace(remote=remote)

    async def _answer(self) -> Any:
        [answer] = self._answers
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def answers_of_stream(self) -> AsyncIterator[Any]:
        for answer in self._answers:
            if isinstance(answer, BaseException):
                raise answer
            yield answer


class FakeStream:
    """A call of Serve's with several answers, which goes on until it is cancelled or done."""

    def __init__(self, deployment: FakeDeployment) -> None:
        self._deployment = deployment

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._deployment.answers_of_stream()

    def cancel(self) -> None:
        self._deployment.calls.append((None, "cancel", ()))


def handle(deployment: FakeDeployment) -> ServeEngineHandle:
    return ServeEngineHandle(cast("DeploymentHandle[Any]", deployment))


async def test_replicas_that_do_not_answer_are_passed_over() -> None:
    deployment = FakeDeployment("a", RayActorError(), "c")
    assert await handle(deployment).replicas() == ["a", "c"]
    assert deployment.calls == [(None, "tag", ())]


@pytest.mark.parametrize("answers", [(), (RayActorError(), TimeoutError())])
async def test_without_any_answer_there_is_no_engine(answers: tuple[Any, ...]) -> None:
    with pytest.raises(EngineError, match="no engine replica"):
        await ask_all(cast("DeploymentHandle[Any]", FakeDeployment(*answers)), "tag")


async def test_a_request_goes_to_any_replica_unless_one_is_named() -> None:
    deployment = FakeDeployment(b"verdict")
    assert await handle(deployment).submit(1, b"request") == b"verdict"
    assert await handle(deployment).submit(1, b"request", "one") == b"verdict"
    assert await handle(deployment).submit(1, b"request", avoid="one") == b"verdict"
    assert deployment.calls == [
        (None, "submit", (1, b"request", None)),
        (session_of("one"), "submit", (1, b"request", "one")),
        (session_without("one"), "submit", (1, b"request", None)),
    ]


async def test_a_replica_gets_what_is_meant_for_it() -> None:
    deployment = FakeDeployment(None)
    await handle(deployment).abort("one", (3, 4))
    await handle(deployment).abort("one", (3,), 2)
    await handle(deployment).renew("two", 7, 100)
    assert deployment.calls == [
        (session_of("one"), "abort", ("one", (3, 4), ALL_CHOICES)),
        (session_of("one"), "abort", ("one", (3,), 2)),
        (session_of("two"), "renew", ("two", 7, 100)),
    ]


class StreamingDeployment(FakeDeployment):
    """Has a port, where the output is that a test gives."""

    def __init__(self, *output: bytes | EngineError | asyncio.Event) -> None:
        """Args: output: an event is waited for."""
        super().__init__()
        self._port = OutputPort("127.0.0.1")
        self._output = output

    async def answers_of_stream(self) -> AsyncIterator[Any]:
        await self._port.open()
        with closing(self._port):
            offer = self._port.offer(lambda request: b"verdict on " + request)
            # a replica goes on by itself, whenever its caller asks for more
            sending = asyncio.create_task(self._send_to(offer))
            yield offer.place
            try:
                await sending
            except EngineError as error:
                # as Serve brings it
                failed: Any = RayTaskError
                raise failed("attach", f"EngineError: {error}", error) from None

    async def _send_to(self, offer: OutputOffer) -> None:
        with offer:
            await offer.send(self._send())

    async def _send(self) -> AsyncGenerator[bytes, None]:
        for item in self._output:
            if isinstance(item, EngineError):
                raise item
            if isinstance(item, asyncio.Event):
                await item.wait()
            else:
                yield item


async def test_the_output_of_a_replica_comes_as_it_is_sent() -> None:
    deployment = StreamingDeployment(b"1", b"2")
    batches = [batch async for batch in handle(deployment).attach("one", 7)]
    assert batches == [b"1", b"2"]
    assert deployment.calls[0] == (session_of("one"), "attach", ("one", 7, None))


async def test_a_request_takes_the_way_of_the_outputs_while_it_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_replicas, "latest", lambda: {"one": {}})
    deployment = StreamingDeployment(b"1", asyncio.Event())
    engine = handle(deployment)
    stream = engine.attach("one", 7)
    assert await anext(stream) == b"1"
    assert await engine.submit(7, b"request") == b"verdict on request"
    # what is for a certain replica, or goes on after one was lost, goes by Serve
    deployment._answers = (b"by Serve",)
    assert await engine.submit(7, b"request", "one") == b"by Serve"
    assert await engine.submit(7, b"request", avoid="two") == b"by Serve"
    await stream.aclose()
    assert await engine.submit(7, b"request") == b"by Serve"
    assert [method for _, method, _ in deployment.calls] == [
        "attach", "submit", "submit", "cancel", "submit"
    ]  # fmt: skip


async def test_a_call_whose_stream_nobody_reads_is_cancelled() -> None:
    deployment = StreamingDeployment(b"1", b"2")
    stream = handle(deployment).attach("one", 7)
    assert await anext(stream) == b"1"
    assert len(deployment.calls) == 1
    await stream.aclose()
    assert deployment.calls[1:] == [(None, "cancel", ())]


async def test_a_stream_ends_with_the_error_of_its_replica() -> None:
    deployment = StreamingDeployment(b"1", EngineError("it was slow"))
    stream = handle(deployment).attach("one", 7)
    assert await anext(stream) == b"1"
    with pytest.raises(EngineError, match="it was slow"):
        await anext(stream)


@pytest.mark.parametrize("error", [RayActorError(), RayServeException("x"), TimeoutError()])
async def test_a_replica_that_cannot_be_reached_is_an_error_of_the_engine(
    error: Exception,
) -> None:
    engine = handle(FakeDeployment(error))
    with pytest.raises(EngineError, match="cannot be reached"):
        await engine.submit(1, b"request")
    with pytest.raises(EngineError, match="cannot be reached"):
        await anext(engine.attach("one", 7))


@pytest.mark.parametrize("start_wait_s", [0.0, 15.0])
async def test_a_replica_is_told_whether_requests_may_wait_for_the_next(
    start_wait_s: float,
) -> None:
    deployment = FakeDeployment("a")
    engine = ServeEngineHandle(cast("DeploymentHandle[Any]", deployment), start_wait_s=start_wait_s)
    assert await engine.is_ready()
    assert deployment.calls[-1] == (None, "is_ready", (start_wait_s > 0,))


async def test_our_own_mistakes_stay_what_they_are() -> None:
    with pytest.raises(ZeroDivisionError):
        await handle(FakeDeployment(ZeroDivisionError())).is_ready()


async def test_a_call_that_is_cancelled_stays_cancelled() -> None:
    with pytest.raises(asyncio.CancelledError):
        await handle(FakeDeployment(asyncio.CancelledError())).is_ready()


class SleepingDeployment(FakeDeployment):
    """Does not answer the first calls in time."""

    def __init__(self, num_late: int, *, has_replica: bool = False) -> None:
        super().__init__(*(["a"] if has_replica else []))
        self.num_late = num_late

    async def _answer(self) -> Any:
        if self.num_late:
            self.num_late -= 1
            await asyncio.get_running_loop().create_future()
        return b"verdict"


async def test_a_request_waits_for_a_first_replica_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = LoopClock(monkeypatch)
    engine = ServeEngineHandle(
        cast("DeploymentHandle[Any]", SleepingDeployment(3)), start_wait_s=60
    )
    # such a server is ready: the first request starts it
    assert await engine.is_ready()
    call = asyncio.create_task(engine.submit(1, b"request"))
    for _ in range(3):
        await clock.advance(CALL_TIMEOUT_S)
    assert await call == b"verdict"


async def test_the_wait_for_a_first_replica_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock(monkeypatch)
    engine = ServeEngineHandle(
        cast("DeploymentHandle[Any]", SleepingDeployment(9)), start_wait_s=15
    )
    call = asyncio.create_task(engine.submit(1, b"request"))
    await clock.advance(CALL_TIMEOUT_S)
    assert not call.done()
    await clock.advance(CALL_TIMEOUT_S)
    with pytest.raises(EngineUnavailable) as refused:
        await call
    assert refused.value.retry_after_s > 0


async def test_a_replica_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = LoopClock(monkeypatch)
    deployment = SleepingDeployment(1, has_replica=True)
    engine = ServeEngineHandle(cast("DeploymentHandle[Any]", deployment), start_wait_s=60)
    call = asyncio.create_task(engine.submit(1, b"request"))
    await clock.advance(CALL_TIMEOUT_S)
    with pytest.raises(EngineError, match="cannot be reached"):
        await call


async def test_the_replica_that_serves_the_shortest_context_counts() -> None:
    dead = RayActorError(error_msg="The actor died.")
    assert await handle(FakeDeployment(64, 48, dead)).max_model_len() == 48


async def test_what_ray_says_of_a_dead_replica_takes_one_line() -> None:
    dead = RayActorError(error_msg="The actor died.\n\tclass_name: Engine\nIts node has died.")
    with pytest.raises(EngineError, match=r"^the engine replica cannot be reached: [^\n]+$"):
        await handle(FakeDeployment(dead)).is_ready()
