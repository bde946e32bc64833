"""A sequence of tokens and every change of its state.

Every change is a method of this file, or for the loops over a whole batch a function of
`sequence_group`. Each asserts what it relies on where that costs no time. Only the scheduler and
its parts call them, and no other module assigns to a field of a sequence or a group
(`tests/engine/core/test_transitions.py` reads the code for it):

    Planner          schedule_prefill, take_fork_row
    Decoding         append_token, append_beam_token, finish
    DeferredRelease  leave_batch, release_row
    SequenceGroup    become_fork, rewind, restart, and whatever it does to all its sequences
"""

from dataclasses import dataclass, field

from engine.types import FinishReason, IntColumn, int32

# looking up a member of an enum takes 0.2 us before Python 3.12, too long for every token
UNFINISHED = FinishReason.NONE


@dataclass(eq=False, slots=True, kw_only=True)
class Sequence:
    """One continuation of a prompt.

        [0, num_scheduled)          positions written by the plans up to the last
        [num_scheduled, num_known)  known tokens that are still to be fed

    Tokens sampled by plans in flight are not known here yet.

    Attributes:
        sequence_id: unique in the scheduler; the key of its block table.
        choice: index inside its request.
        prompt: int32 token ids.
        output: int32 token ids generated so far.
        row: place in the workers' row table; -1 while it has none.
        prefill_end: known tokens when blocks were allocated; positions below are prefilled, later
            ones decoded.
        num_scheduled: positions covered by plans up to the last one.
        num_in_flight: tokens that submitted plans sample and no result has brought yet.
        fork_row: row whose state its row takes over with the next plan; -1 for none.
        last_step: number of the last plan that touches its row or blocks.
        is_spoiled: whether its blocks are worthless, while it leaves the batch.
        finish_reason: NONE while it goes on.
    """

    sequence_id: int
    choice: int
    prompt: IntColumn
    output: IntColumn = field(default_factory=int32)
    row: int = -1
    prefill_end: int = 0
    num_scheduled: int = 0
    num_in_flight: int = 0
    fork_row: int = -1
    last_step: int = -1
    is_spoiled: bool = False
    finish_reason: FinishReason = UNFINISHED

    @property
    def num_known(self) -> int:
        """Prompt and output tokens that are known here."""
        return len(self.prompt) + len(self.output)

    @property
    def last_known(self) -> int:
        """The last token that is known here."""
        return self.output[-1] if self.output else self.prompt[-1]

    @property
    def is_prefilling(self) -> bool:
        """Whether known tokens are still to be prefilled."""
        return self.num_scheduled < self.prefill_end

    @property
    def num_to_prefill(self) -> int:
        """Known tokens that are still to be prefilled."""
        return max(0, self.prefill_end - self.num_scheduled)

    def known_tokens(self, start: int, count: int) -> IntColumn:
        """Tokens [start, start + count) of prompt and output, int32."""
        split = len(self.prompt)
        if start + count <= split:
            return self.prompt[start : start + count]
        output = self.output[max(0, start - split) : start + count - split]
        return self.prompt[start:] + output

    def schedule_prefill(self, count: int, *, samples: bool, step: int) -> None:
        """Plan the next `count` known tokens; the chunk that ends them samples a token."""
        self.num_scheduled += count
        self.num_in_flight += samples
        self.last_step = step
        assert samples == (self.num_scheduled == self.prefill_end)

    def append_token(self, token: int, stop_ids: frozenset[int], max_tokens: int) -> None:
        """Take in a sampled token; a stop id, or the last token allowed, ends the sequence."""
        assert self.finish_reason is UNFINISHED
        output = self.output
        output.append(token)
        if token in stop_ids:
            self.finish_reason = FinishReason.STOP
        elif len(output) == max_tokens:
            self.finish_reason = FinishReason.LENGTH

    def append_beam_token(self, token: int) -> None:
        """Take in the token that the beam search has chosen; when a beam ends is its decision."""
        assert self.finish_reason is UNFINISHED
        self.output.append(token)

    def become_fork(self, parent: "Sequence") -> None:
        """Take over what a sequence of the same group has generated.

        Its row takes over the parent's state with the next plan (see `take_fork_row`).
        """
        assert self is not parent
        self.output = parent.output[:]
        self.prefill_end = parent.prefill_end
        self.num_scheduled = parent.num_scheduled
        self.fork_row = parent.row
        self.finish_reason = UNFINISHED

    def take_fork_row(self) -> int:
        """The row whose state its row takes over with this plan; -1 for none."""
        row, self.fork_row = self.fork_row, -1
        return row

    def finish(self, reason: FinishReason) -> None:
        """End it. Tokens of plans in flight are dropped; a beam may be forked into again."""
        assert self.finish_reason is UNFINISHED
        assert reason is not UNFINISHED
        self.finish_reason = reason

    def rewind(self) -> None:
        """Feed the last known token again, if a plan has fed it already."""
        self.num_scheduled = min(self.num_scheduled, self.num_known - 1)
        self.prefill_end = min(self.prefill_end, self.num_scheduled)

    def restart(self) -> None:
        """Forget what is in the pool; everything known is to be prefilled again."""
        self.num_scheduled = self.prefill_end = 0

    def spoil(self) -> None:
        """Note that its blocks are worthless."""
        self.is_spoiled = True

    def leave_batch(self) -> None:
        """Take part in no later plan; a fork that its row has not followed yet is dropped."""
        assert self.row >= 0
        self.fork_row = -1

    def release_row(self) -> int:
        """Give up its row, which no plan in flight touches."""
        assert self.row >= 0
        assert self.num_in_flight == 0
        row, self.row = self.row, -1
        self.is_spoiled = False
        return row
