"""What the ingress sees of the engine: token ids in, token ids out. No text, HTTP or Ray types."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from engine.runtime.messages import PrefixInfo
from engine.types import FinishReason, FloatColumn, IntColumn, Pin, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamStep:
    """One step of a beam search; see the columns of `engine.types.StepOutput`."""

    indices: IntColumn
    parents: IntColumn
    tokens: IntColumn
    logprobs: FloatColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New tokens of one choice of a request.

    Attributes:
        choice: index of the sequence inside its request; PROMPT_CHOICE for the tokens of the
            prompt from the second on, which end before the last choice does; BEAM_CHOICE for the
            steps of a search.
        tokens: int32, may be empty when a choice ends.
        logprobs: float32, one per token; NaN where none was asked for.
        top_tokens, top_logprobs: one column per token, most likely first; empty when none was asked
            for.
        finish_reason: NONE while the choice goes on.
        num_cached: tokens of the prompt that were found in the prefix cache, told with one delta of
            a request.
        num_preemptions: times that the request was preempted since its last delta.
        beam_steps: in order, with BEAM_CHOICE alone.
    """

    choice: int
    tokens: IntColumn
    logprobs: FloatColumn
    top_tokens: tuple[IntColumn, ...] = ()
    top_logprobs: tuple[FloatColumn, ...] = ()
    finish_reason: FinishReason = FinishReason.NONE
    num_cached: int = 0
    num_preemptions: int = 0
    beam_steps: tuple[BeamStep, ...] = ()


class TokenStream(Protocol):
    """The output of one request, in order. Ends after every choice has finished.

    Iterating raises EngineError when the engine dies before the end, and RequestError when the
    request is refused after all.
    """

    request_id: int

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    async def abort(self) -> None:
        """Stop the request and free what it holds, also while being cancelled.

        A no-op once it has ended.
        """
        ...

    async def abort_choice(self, choice: int) -> None:
        """Stop one choice and free what it alone holds; nothing more is told of it.

        A no-op once it has ended.
        """
        ...


class EngineClient(Protocol):
    """How an ingress replica talks to the engine replicas."""

    async def submit(
        self, prompt: IntColumn, sampling: SamplingParams, *, salt: bytes = b""
    ) -> TokenStream:
        """Hand a request to an engine replica and wait for its verdict.

        Args:
            prompt: int32 token ids.
            salt: the tenant, see `Request.salt`.

        Raises:
            InvalidRequest: if it asks for more sequences than fit the batch.
            PromptTooLong: if it can never fit.
            Overloaded: if the queue is full.
            EngineError: if no engine replica can be reached.
        """
        ...

    async def pin_prefix(self, prompt: IntColumn, pin: Pin, *, salt: bytes = b"") -> FinishReason:
        """Have the full blocks of a prompt pinned on every engine replica, and wait for it.

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
        """Give up a pinned prefix of a tenant on every replica; unknown ones are ignored.

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
        """Whether an engine replica is there that made progress lately."""
        ...
