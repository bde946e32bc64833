"""Between the HTTP application and the engines: lets requests end and refuses new ones."""

from engine.errors import EngineUnavailable
from engine.runtime.protocol import EngineClient, ForwardingClient, TokenStream
from engine.types import ORDINARY_TERMS, FinishReason, IntColumn, Pin, SamplingParams, Terms

# that another server, or this one started anew, is likely to need
RETRY_S = 10.0


class DrainableClient(ForwardingClient):
    """An `EngineClient` that can be closed to new requests; those that are open go on."""

    def __init__(self, client: EngineClient) -> None:
        super().__init__(client)
        self._is_draining = False

    def drain(self) -> None:
        """Refuse what comes from now on, and be ready no more."""
        self._is_draining = True

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
        return await super().submit(prompt, sampling, salt=salt, session=session, terms=terms)

    async def pin_prefix(self, prompt: IntColumn, pin: Pin, *, salt: bytes = b"") -> FinishReason:
        """See `EngineClient.pin_prefix`.

        Raises:
            EngineUnavailable: if the server is about to stop.
        """
        self._check()
        return await super().pin_prefix(prompt, pin, salt=salt)

    async def is_ready(self) -> bool:
        """See `EngineClient.is_ready`."""
        return not self._is_draining and await super().is_ready()

    def _check(self) -> None:
        if self._is_draining:
            raise EngineUnavailable("the server is about to stop", retry_after_s=RETRY_S)
