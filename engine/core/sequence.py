"""Sequences and the groups that belong to one request. Only the scheduler changes them."""

from array import array
from dataclasses import dataclass, field
from enum import Enum, auto

from engine.types import FinishReason, Request, int32


class Status(Enum):
    """Where a group is."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(eq=False, slots=True, kw_only=True)
class Sequence:
    """One continuation of a prompt.

    Plans up to the last one write keys and values of positions [0, num_scheduled). Known tokens
    from there on are still to be prefilled; tokens that plans in flight sample come after them.

    Attributes:
        sequence_id: unique in the scheduler; the key of its block table.
        choice: index inside its request.
        prompt: int32 token ids.
        output: int32 token ids generated so far.
        row: place in the workers' row table; -1 while it has none.
        prefill_end: known tokens when it was admitted; positions below are prefilled, later ones
            decoded.
        num_scheduled: positions covered by plans up to the last one.
        num_in_flight: tokens that submitted plans sample and no result has brought yet.
        last_step: number of the last plan that touches its row or blocks.
        finish_reason: NONE while it goes on.
    """

    sequence_id: int
    choice: int
    prompt: "array[int]"
    output: "array[int]" = field(default_factory=int32)
    row: int = -1
    prefill_end: int = 0
    num_scheduled: int = 0
    num_in_flight: int = 0
    last_step: int = -1
    finish_reason: FinishReason = FinishReason.NONE

    @property
    def num_known(self) -> int:
        """Prompt and output tokens that are known here."""
        return len(self.prompt) + len(self.output)

    @property
    def is_prefilling(self) -> bool:
        """Whether known tokens are still to be prefilled."""
        return self.num_scheduled < self.prefill_end

    def known_tokens(self, start: int, count: int) -> "array[int]":
        """Tokens [start, start + count) of prompt and output, int32."""
        split = len(self.prompt)
        if start + count <= split:
            return self.prompt[start : start + count]
        output = self.output[max(0, start - split) : start + count - split]
        return self.prompt[start:] + output


@dataclass(eq=False, slots=True, kw_only=True)
class SequenceGroup:
    """The sequences of one request: first one, preempted as a whole (paper, section 4.5).

    Attributes:
        max_tokens: tokens that each sequence may generate, clipped to the model's context.
        stop_ids: token ids that end a sequence.
    """

    request: Request
    sequences: list[Sequence]
    max_tokens: int
    stop_ids: frozenset[int]
    status: Status = Status.WAITING
