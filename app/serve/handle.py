"""Calls from an ingress to the engine replicas, through Ray Serve."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from app.serve.router import session_of, session_without
from engine.errors import EngineError, EngineUnavailable
from engine.runtime.client.direct_submission import DirectSubmission
from engine.runtime.output_socket.reader import read_outputs
from engine.runtime.replica.client_processes import ClientProcess
from engine.runtime.replica.watch.gang_process import explain
from engine.types import ALL_CHOICES

# longer than Serve takes to replace a replica whose process has died
CALL_TIMEOUT_S = 10.0
# what a client is asked to wait for a replica that is starting
START_RETRY_S = 10.0


class ServeEngineHandle:
    """Calls the deployment "Engine".

    Implements `engine.runtime.client.engine_handle.EngineHandle`.
    """

    def __init__(
        self,
        engine: DeploymentHandle[Any],
        process: ClientProcess | None = None,
        *,
        start_wait_s: float = 0.0,
    ) -> None:
        """Take note of whom to call.

        Args:
            process: this one, by which replicas find out whether it lives.
            start_wait_s: seconds that a request waits for a replica while none runs.
        """
        self._engine = over_grpc(engine)
        self._process = process
        self._start_wait_s = start_wait_s
        self._direct = DirectSubmission()

    async def replicas(self) -> list[str]:
        """See `EngineHandle.replicas`."""
        return await ask_all(self._engine, "tag")

    async def submit(
        self, client: int, request: bytes, replica: str | None = None, *, avoid: str | None = None
    ) -> bytes:
        """See `EngineHandle.submit`."""
        if replica is None and avoid is None:
            direct: bytes | None = await _answer(self._direct.submit(request))
            if direct is not None:
                return direct
        engine = self._engine if replica is None else self._pinned(replica)
        if avoid is not None:
            engine = self._engine.options(session_id=session_without(avoid))
        started_s = asyncio.get_running_loop().time()
        while True:
            try:
                # without a replica it waits at Serve's router, which counts it as demand for one
                verdict: bytes = await _answer(engine.submit.remote(client, request, replica))
                return verdict
            except EngineError as error:
                may_wait = self._start_wait_s and replica is None
                is_late = isinstance(error.__cause__, TimeoutError)
                if not (may_wait and is_late) or await self._is_any_running():
                    raise
            if asyncio.get_running_loop().time() - started_s >= self._start_wait_s:
                raise EngineUnavailable("no engine replica runs yet", retry_after_s=START_RETRY_S)

    async def abort(
        self, replica: str, request_ids: tuple[int, ...], choice: int = ALL_CHOICES
    ) -> None:
        """See `EngineHandle.abort`."""
        await _answer(self._pinned(replica).abort.remote(replica, request_ids, choice))

    async def renew(self, replica: str, client: int, received_bytes: int) -> None:
        """See `EngineHandle.renew`."""
        await _answer(self._pinned(replica).renew.remote(replica, client, received_bytes))

    async def attach(self, replica: str, client: int) -> AsyncGenerator[bytes, None]:
        """See `EngineHandle.attach`."""
        handle: Any = self._pinned(replica).options(stream=True)
        with _engine_errors():
            call = handle.attach.remote(replica, client, self._process)
            try:
                # one place; then nothing until the stream has ended, and the same end
                async for place in call:
                    with self._direct.reading(replica) as on_open:
                        async with aclosing(read_outputs(place, on_open)) as batches:
                            async for batch in batches:
                                yield batch
            finally:
                # whoever stops reading is not waiting for the call: nothing else would end it
                call.cancel()

    async def release_prefix(self, salt: bytes, name: str) -> None:
        """See `EngineHandle.release_prefix`."""
        await ask_all(self._engine, "release_prefix", salt, name)

    async def prefixes(self, salt: bytes) -> list[bytes]:
        """See `EngineHandle.prefixes`."""
        return await ask_all(self._engine, "prefixes", salt)

    async def is_ready(self) -> bool:
        """See `EngineHandle.is_ready`; a request that may wait for a first replica needs none."""
        may_wait = self._start_wait_s > 0
        if may_wait and not await self._is_any_running():
            return True
        return bool(await _answer(self._engine.is_ready.remote(may_wait)))

    async def max_model_len(self) -> int:
        """See `EngineHandle.max_model_len`."""
        lengths: list[int] = await ask_all(self._engine, "max_model_len")
        return min(lengths)

    async def _is_any_running(self) -> bool:
        try:
            return bool(await self.replicas())
        except EngineError:
            return False

    def _pinned(self, replica: str) -> DeploymentHandle[Any]:
        return self._engine.options(session_id=session_of(replica))


def over_grpc(deployment: DeploymentHandle[Any]) -> DeploymentHandle[Any]:
    """Return a handle whose answers are no objects of Ray.

    For Ray an answer of Serve's is a stream of objects, and at its end the event loop of the
    replica waits until the caller has taken note of all of them: a caller that is frozen would
    hold up everybody else's answers. Serve's throughput mode has gRPC for all handles.
    """
    options: Any = deployment.options
    found: DeploymentHandle[Any] = options(_by_reference=False)
    return found


async def ask_all(engine: DeploymentHandle[Any], method: str, *args: Any) -> list[Any]:
    """Call every engine replica; return the answers of those that do answer.

    Raises:
        EngineError: if none answers.
    """
    with _engine_errors():
        answers = await engine.broadcast(method, *args).results_async(
            timeout_s=CALL_TIMEOUT_S, return_exceptions=True
        )
    answered = [answer for answer in answers if not isinstance(answer, BaseException)]
    if not answered:
        raise EngineError(f"no engine replica can be reached: {answers}")
    return answered


async def _answer(call: Any) -> Any:
    with _engine_errors():
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await call


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Turn what Ray and Serve raise when a replica cannot be reached into an EngineError."""
    try:
        yield
    except (RayError, RayServeException, TimeoutError) as error:
        raise EngineError(f"the engine replica cannot be reached: {explain(error)}") from error
