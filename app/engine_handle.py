"""Serve's way from an ingress to the engine replicas."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from app.router import session_of
from engine.errors import EngineError
from engine.types import ALL_CHOICES

# longer than Serve takes to replace a replica whose process has died
CALL_TIMEOUT_S = 10.0


class ServeEngineHandle:
    """Calls the `Engine` deployment. Implements `engine.runtime.client.EngineHandle`."""

    def __init__(self, engine: DeploymentHandle[Any]) -> None:
        self._engine = engine

    async def submit(self, client: int, request: bytes) -> bytes:
        """See `EngineHandle.submit`."""
        verdict: bytes = await _answer(self._engine.submit.remote(client, request))
        return verdict

    async def abort(
        self, replica: str, request_ids: tuple[int, ...], choice: int = ALL_CHOICES
    ) -> None:
        """See `EngineHandle.abort`."""
        await _answer(self._pinned(replica).abort.remote(replica, request_ids, choice))

    async def renew(self, replica: str, client: int, received_bytes: int) -> None:
        """See `EngineHandle.renew`."""
        await _answer(self._pinned(replica).renew.remote(replica, client, received_bytes))

    async def attach(self, replica: str, client: int) -> AsyncIterator[bytes]:
        """See `EngineHandle.attach`."""
        handle: Any = self._pinned(replica).options(stream=True)
        with _engine_errors():
            async for batch in handle.attach.remote(replica, client):
                yield batch

    async def release_prefix(self, salt: bytes, name: str) -> None:
        """See `EngineHandle.release_prefix`."""
        await _answer(self._engine.release_prefix.remote(salt, name))

    async def prefixes(self, salt: bytes) -> bytes:
        """See `EngineHandle.prefixes`."""
        found: bytes = await _answer(self._engine.prefixes.remote(salt))
        return found

    async def is_ready(self) -> bool:
        """See `EngineHandle.is_ready`."""
        return bool(await _answer(self._engine.is_ready.remote()))

    def _pinned(self, replica: str) -> DeploymentHandle[Any]:
        return self._engine.options(session_id=session_of(replica))


async def _answer(call: Any) -> Any:
    with _engine_errors():
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await call


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Make an EngineError of whatever Ray and Serve raise when a replica cannot be reached."""
    try:
        yield
    except (RayError, RayServeException, TimeoutError) as error:
        raise EngineError(f"the engine replica cannot be reached: {error}") from error
