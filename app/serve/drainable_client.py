"""Between the HTTP application and the engines: lets requests end and refuses new ones."""

from engine.errors import EngineUnavailable
from engine.runtime.messages import PrefixInfo
from engine.runtime.protocol import EngineClient, TokenStream
from engine.types import ORDINARY_TERMS, FinishReason, IntColumn, Pin, SamplingParams, Terms

# that another server, or this one started anew, is likely to need
RETRY_S = 10.0


class DrainableClient:
    """An `EngineClient` that can be closed to new requests; those that are open go on."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._is_draining = False

    def drain(self) -> None:
        """Refuse what comes from now on, and be ready no more."""
        self._is_draining = True

    def check_room(self, account: bytes) -> None:
        """See `EngineClient.check_room`."""
        self._client.check_room(account)

    async def submit(
        self,
        prompt: IntColumn,
        sampling: SamplingParams,
        *,
        salt: bytes = b"",
        session: bytes = b"",
        terms: Terms = ORDINARY_TERMS,
    ) -> TokenStream:
        """See `EngineClient.submit`.

        Raises:
            EngineUnavailable: if the server is about to stop.
        """
        self._check()
        return await self._client.submit(prompt, sampling, salt=salt, session=session, terms=terms)

    async def pin_prefix(self, prompt: IntColumn, pin: Pin, *, salt: bytes = b"") -> FinishReason:
        """See `EngineClient.pin_prefix`.

        Raises:
            EngineUnavailable: if the server is about to stop.
        """
        self._check()
        return await self._client.pin_prefix(prompt, pin, salt=salt)

    async def release_prefix(self, name: str, *, salt: bytes = b"") -> None:
        """See `EngineClient.release_prefix`."""
        await self._client.release_prefix(name, salt=salt)

    async def prefixes(self, *, salt: bytes = b"") -> list[PrefixInfo]:
        """See `EngineClient.prefixes`."""
        return await self._client.prefixes(salt=salt)

    async def is_ready(self) -> bool:
        """See `EngineClient.is_ready`."""
        return not self._is_draining and await self._client.is_ready()

    def _check(self) -> None:
        if self._is_draining:
            raise EngineUnavailable("the server is about to stop", retry_after_s=RETRY_S)
