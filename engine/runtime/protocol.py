"""The engine as the app sees it: token ids in, token ids out. No text, HTTP or Ray types.

`RemoteEngineClient` implements it over Ray Serve; tests have an engine in the same process.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Protocol

from engine.runtime.messages import PrefixInfo
from engine.types import (
    ORDINARY_TERMS,
    EventKind,
    FinishReason,
    FloatColumn,
    IntColumn,
    Pin,
    SamplingParams,
    Terms,
    float32,
    int32,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamStep:
    """One step of a beam search; see the columns of `engine.types.StepOutput`."""

    indices: IntColumn
    parents: IntColumn
    tokens: IntColumn
    logprobs: FloatColumn
    top_counts: IntColumn = field(default_factory=int32)
    top_tokens: IntColumn = field(default_factory=int32)
    top_logprobs: FloatColumn = field(default_factory=float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New tokens of one choice of a request.

    Attributes:
        choice: index of the sequence inside its request; PROMPT_CHOICE for the scored tokens of the
            prompt from the second on, the last of which come before the last choice ends;
            BEAM_CHOICE for the steps of a beam search.
        tokens: int32, may be empty when a choice ends.
        logprobs: float32, one per token; NaN where none was asked for.
        top_tokens, top_logprobs: one column per token, most likely first; empty when none was asked
            for.
        finish_reason: NONE while the choice goes on.
        num_cached: tokens of the prompt that were found in the prefix cache; reported in one delta
            of a request, 0 in the others.
        num_preemptions: times that the request was preempted since its last delta.
        peak_blocks: most blocks that the request has held at once, where it wants to know and they
            have become more since its last delta.
        beam_steps: in order; empty unless the choice is BEAM_CHOICE.
        pooled: float32 vector of the prompt, with the end of a request that asks for one.
    """

    choice: int
    tokens: IntColumn
    logprobs: FloatColumn
    top_tokens: tuple[IntColumn, ...] = ()
    top_logprobs: tuple[FloatColumn, ...] = ()
    finish_reason: FinishReason = FinishReason.NONE
    num_cached: int = 0
    num_preemptions: int = 0
    peak_blocks: int = 0
    beam_steps: tuple[BeamStep, ...] = ()
    pooled: FloatColumn = field(default_factory=float32)


# takes a delta, or returns False and has changed nothing
TakeDelta = Callable[[Delta], bool]


class TokenStream(Protocol):
    """The output of one request, in order. Ends after every choice has finished.

    It goes on, without a gap or a repeat, on another engine replica when its own is lost. Iterating
    raises EngineError when it cannot, and RequestError when the request is refused after all.

    Attributes:
        events: what engines have reported of it so far, with microseconds since the epoch; one that
            goes on elsewhere is queued again.
    """

    request_id: int
    events: list[tuple[EventKind, int]]

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    def offer_to(self, take: TakeDelta) -> None:
        """Offer what comes from now on to `take` first, without waking the reader.

        Only while the reader waits for it, and never the end of a choice. What is taken is not
        yielded. A stream may offer nothing.
        """
        ...

    async def abort(self) -> None:
        """Stop the request and free what it holds, also while being cancelled.

        A no-op once it has ended.
        """
        ...

    async def abort_choice(self, choice: int) -> None:
        """Stop one choice and free what only it holds; its later output is dropped.

        A no-op once it has ended.
        """
        ...


class EngineClient(Protocol):
    """How the app reaches the engine replicas."""

    def check_room(self, account: bytes) -> None:
        """Return unless it is known that no replica has room for a request of an account.

        Args:
            account: see `Terms`.

        Raises:
            Overloaded: without having asked anybody.
        """
        ...

    async def submit(
        self,
        prompt: IntColumn,
        sampling: SamplingParams,
        *,
        salt: bytes = b"",
        session: bytes = b"",
        terms: Terms = ORDINARY_TERMS,
    ) -> TokenStream:
        """Send a request to an engine replica and wait until it is accepted or refused.

        Args:
            prompt: int32 token ids.
            salt, session, terms: see `Request`.

        Raises:
            InvalidRequest: if it asks for more sequences than fit the batch.
            PromptTooLong: if it can never fit.
            Overloaded: if the queue is full, or the request would wait for too long.
            EngineError: if no engine replica can be reached.
        """
        ...

    async def pin_prefix(self, prompt: IntColumn, pin: Pin, *, salt: bytes = b"") -> FinishReason:
        """Compute and pin the full blocks of a prompt on every engine replica, one after the other.

        See `engine.core.memory.pinned_prefixes`. If a replica refuses, those before it keep what
        they have pinned.

        Returns:
            LENGTH when the prefix is pinned, else why its computation ended.

        Raises:
            InvalidRequest: if it cannot be pinned.
            See `submit`.
        """
        ...

    async def release_prefix(self, name: str, *, salt: bytes = b"") -> None:
        """Release a pinned prefix of a tenant on every replica; unknown ones are ignored.

        Raises:
            EngineError: if no engine replica can be reached.
        """
        ...

    async def prefixes(self, *, salt: bytes = b"") -> list[PrefixInfo]:
        """Return the pinned prefixes of a tenant; warm ones are computed on every replica.

        Raises:
            EngineError: if no engine replica can be reached.
        """
        ...

    async def is_ready(self) -> bool:
        """Whether an engine replica runs and, with requests open, has made a step lately."""
        ...

    async def max_model_len(self) -> int | None:
        """Longest prompt plus output in tokens that every replica serves; None if none answers."""
        ...


class ForwardingClient:
    """An `EngineClient` that passes all on to another; others override some calls."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

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
        """See `EngineClient.submit`."""
        return await self._client.submit(prompt, sampling, salt=salt, session=session, terms=terms)

    async def pin_prefix(self, prompt: IntColumn, pin: Pin, *, salt: bytes = b"") -> FinishReason:
        """See `EngineClient.pin_prefix`."""
        return await self._client.pin_prefix(prompt, pin, salt=salt)

    async def release_prefix(self, name: str, *, salt: bytes = b"") -> None:
        """See `EngineClient.release_prefix`."""
        await self._client.release_prefix(name, salt=salt)

    async def prefixes(self, *, salt: bytes = b"") -> list[PrefixInfo]:
        """See `EngineClient.prefixes`."""
        return await self._client.prefixes(salt=salt)

    async def is_ready(self) -> bool:
        """See `EngineClient.is_ready`."""
        return await self._client.is_ready()

    async def max_model_len(self) -> int | None:
        """See `EngineClient.max_model_len`."""
        return await self._client.max_model_len()
