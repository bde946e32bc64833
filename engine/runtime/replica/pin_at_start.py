"""Pins prefixes before a gang takes requests: configured ones, a lost gang's, and those of peers.

It does so as a client of its own replica, so that a prefix is computed by the path of any request.
"""

import logging
import time
from collections.abc import AsyncIterator, Collection, Iterable, Sequence, Sized
from contextlib import asynccontextmanager

from engine.config import PrefixConfig, ResumeConfig
from engine.errors import ConfigError, EngineError, RequestError
from engine.runtime.client.client import RemoteEngineClient
from engine.runtime.messages import PINS
from engine.runtime.replica.supervisor import Supervisor
from engine.types import ALL_CHOICES, LOST_REASONS, FinishReason, Pin, int32

logger = logging.getLogger(__name__)


class LocalEngineHandle:
    """Calls the supervisor of this process, without Serve. Implements `EngineHandle`."""

    def __init__(self, supervisor: Supervisor, *, is_own: bool = False) -> None:
        """Args: is_own: see `Supervisor.submit`."""
        self._supervisor = supervisor
        self._is_own = is_own

    async def replicas(self) -> list[str]:
        """See `EngineHandle.replicas`."""
        return [self._supervisor.replica]

    async def submit(
        self, client: int, request: bytes, replica: str | None = None, *, avoid: str | None = None
    ) -> bytes:
        """See `EngineHandle.submit`."""
        return self._supervisor.submit(client, request, is_own=self._is_own)

    async def abort(
        self, replica: str, request_ids: tuple[int, ...], choice: int = ALL_CHOICES
    ) -> None:
        """See `EngineHandle.abort`."""
        self._supervisor.abort(request_ids, choice)

    async def renew(self, replica: str, client: int, received_bytes: int) -> None:
        """See `EngineHandle.renew`."""
        self._supervisor.renew(client, received_bytes)

    def attach(self, replica: str, client: int) -> AsyncIterator[bytes]:
        """See `EngineHandle.attach`."""
        return self._supervisor.attach(client)

    async def release_prefix(self, salt: bytes, name: str) -> None:
        """See `EngineHandle.release_prefix`."""
        self._supervisor.release_prefix(salt, name)

    async def prefixes(self, salt: bytes) -> list[bytes]:
        """See `EngineHandle.prefixes`."""
        return [self._supervisor.prefixes(salt)]

    async def is_ready(self) -> bool:
        """See `EngineHandle.is_ready`."""
        return self._supervisor.is_healthy

    async def max_model_len(self) -> int:
        """See `EngineHandle.max_model_len`."""
        return self._supervisor.max_model_len


def own_client(supervisor: Supervisor) -> RemoteEngineClient:
    """A client whose requests make a new gang ready; the caller closes it."""
    # what makes a gang ready is not resumed: if that gang is lost, too, the next one begins anew
    resume = ResumeConfig(resume_timeout_s=0.0, max_resumes=0)
    return RemoteEngineClient(LocalEngineHandle(supervisor, is_own=True), resume=resume)


async def pin_configured_prefixes(supervisor: Supervisor, prefixes: Sequence[PrefixConfig]) -> None:
    """Compute and pin prefixes, one after the other.

    Raises:
        ConfigError: naming the prefix that cannot be pinned.
        EngineError: if the engine fails meanwhile.
    """
    async with _pinning(supervisor, prefixes) as client:
        for prefix in prefixes:
            await _pin(client, prefix)


async def pin_again(supervisor: Supervisor) -> None:
    """Pin what a lost gang had pinned, for the time that is left; failures are logged only.

    Raises:
        EngineError: if the engine fails meanwhile.
    """
    await _pin_where_possible(supervisor, supervisor.missing_pins())


async def pin_prefixes_of_peers(supervisor: Supervisor, pins: Iterable[PrefixConfig]) -> None:
    """Pin what other replicas have pinned and this one has not; failures are logged only.

    Raises:
        EngineError: if the engine fails meanwhile.
    """
    held = {_key(prefix) for prefix in PINS.decode(supervisor.pins())}
    # several replicas have the same prefix
    missing = {_key(pin): pin for pin in pins if _key(pin) not in held}
    await _pin_where_possible(supervisor, missing.values())


async def _pin_where_possible(supervisor: Supervisor, pins: Collection[PrefixConfig]) -> None:
    async with _pinning(supervisor, pins) as client:
        for pin in pins:
            try:
                await _pin(client, pin)
            except ConfigError as error:
                logger.warning("prefix_not_adopted reason=%s", error)


@asynccontextmanager
async def _pinning(supervisor: Supervisor, prefixes: Sized) -> AsyncIterator[RemoteEngineClient]:
    started_s = time.monotonic()
    client = own_client(supervisor)
    try:
        yield client
    finally:
        await client.close()
    if prefixes:
        seconds = time.monotonic() - started_s
        logger.info("prefixes_pinned count=%d seconds=%.1f", len(prefixes), seconds)


def _key(prefix: PrefixConfig) -> tuple[bytes, str]:
    return prefix.salt, prefix.name


async def _pin(client: RemoteEngineClient, prefix: PrefixConfig) -> None:
    pin = Pin(name=prefix.name, ttl_s=prefix.ttl_s)
    try:
        reason = await client.pin_prefix(int32(prefix.token_ids), pin, salt=prefix.salt)
    except RequestError as error:
        raise ConfigError(f"pinned_prefixes: {prefix.name!r} cannot be pinned: {error}") from error
    if reason in LOST_REASONS:
        raise EngineError("the engine's processes died while a prefix was pinned")
    if reason is not FinishReason.LENGTH:
        raise ConfigError(
            f"pinned_prefixes: {prefix.name!r} cannot be computed: the model gives no probabilities"
        )
