"""Sequences and the groups that belong to one request. Only the scheduler changes them."""

from dataclasses import dataclass, field
from enum import Enum, auto

from engine.core.beam_search import BeamSearch
from engine.types import FinishReason, IntColumn, Request, SamplingParams, int32


class Status(Enum):
    """Where a group is."""

    WAITING = auto()
    RUNNING = auto()
    SWAPPED = auto()
    FINISHED = auto()


# looking up a member of an enum takes 0.2 us before Python 3.12, too long for every token
UNFINISHED = FinishReason.NONE
RUNNING = Status.RUNNING


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
        prefill_end: known tokens when it was admitted; positions below are prefilled, later ones
            decoded.
        num_scheduled: positions covered by plans up to the last one.
        num_in_flight: tokens that submitted plans sample and no result has brought yet.
        fork_row: row whose state its row takes over with the next plan; -1 for none.
        last_step: number of the last plan that touches its row or blocks.
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

    def known_tokens(self, start: int, count: int) -> IntColumn:
        """Tokens [start, start + count) of prompt and output, int32."""
        split = len(self.prompt)
        if start + count <= split:
            return self.prompt[start : start + count]
        output = self.output[max(0, start - split) : start + count - split]
        return self.prompt[start:] + output

    def become_fork(self, parent: "Sequence") -> None:
        """Take over what a sequence of the same group has generated; the row follows later."""
        self.output = parent.output[:]
        self.prefill_end = parent.prefill_end
        self.num_scheduled = parent.num_scheduled
        self.fork_row = parent.row
        self.finish_reason = UNFINISHED

    def rewind(self) -> None:
        """Feed the last known token again, if a plan has fed it already."""
        self.num_scheduled = min(self.num_scheduled, self.num_known - 1)
        self.prefill_end = min(self.prefill_end, self.num_scheduled)

    def restart(self) -> None:
        """Forget what is in the pool; everything known is to be prefilled again."""
        self.num_scheduled = self.prefill_end = 0


@dataclass(eq=False, slots=True, kw_only=True)
class SequenceGroup:
    """The sequences of one request: first one, its siblings are born by fork after the prefill.

    A group is admitted, preempted and swapped as a whole (paper, section 4.5).

    Attributes:
        max_tokens: tokens that each sequence may generate, clipped to the model's context.
        stop_ids: token ids that end a sequence.
        num_sequences: sequences once it has forked.
        row_sampling: the parameters that the workers use for its rows.
        beam: state of its beam search; None for sampling.
        spare_rows: rows kept for siblings that are not born yet.
        num_overtakes: later groups that have entered while it was swapped out.
        num_prompt_told: prompt tokens whose log-probability has been told, where asked for.
        num_cached_tokens: prompt tokens that the prefix cache had when it was admitted first; -1
            before.
        is_cache_told: whether that has been told.
        num_untold_preemptions: times that it was preempted since its last news.
        unwanted: choices that end in place of their next token.
    """

    request: Request
    sequences: list[Sequence]
    max_tokens: int
    stop_ids: frozenset[int]
    num_sequences: int
    row_sampling: SamplingParams
    beam: BeamSearch | None = None
    spare_rows: list[int] = field(default_factory=list)
    status: Status = Status.WAITING
    num_overtakes: int = 0
    num_prompt_told: int = 0
    num_cached_tokens: int = -1
    is_cache_told: bool = False
    num_untold_preemptions: int = 0
    unwanted: set[int] = field(default_factory=set)

    @property
    def num_prompt_entries(self) -> int:
        """Leading prompt positions whose following token has a log-probability to tell."""
        asks = self.request.sampling.prompt_logprobs is not None
        return len(self.request.prompt) - 1 if asks else 0

    @property
    def live(self) -> list[Sequence]:
        """Sequences that go on."""
        return [s for s in self.sequences if s.finish_reason is UNFINISHED]

    @property
    def with_row(self) -> list[Sequence]:
        """Sequences that need a row: live ones, and beams that a fork may revive."""
        return self.sequences if self.beam is not None else self.live

    @property
    def ready(self) -> list[Sequence]:
        """Sequences of a running group whose next token can be planned."""
        if self.status is not RUNNING:
            return []
        if self.beam is not None:
            # a beam learns its next token only when all beams have their candidates
            return [
                s
                for s in self.sequences
                if s.prefill_end <= s.num_scheduled < len(s.prompt) + len(s.output)
                and s.finish_reason is UNFINISHED
            ]
        max_tokens = self.max_tokens
        return [
            s
            for s in self.sequences
            if s.num_scheduled >= s.prefill_end
            and s.finish_reason is UNFINISHED
            and len(s.output) + s.num_in_flight < max_tokens
        ]

    @property
    def is_prefilling(self) -> bool:
        """Whether it is running and known tokens of it are still to be prefilled."""
        return self.status is RUNNING and any(s.is_prefilling for s in self.sequences)

    @property
    def num_unborn(self) -> int:
        """Siblings that are still to be forked."""
        return self.num_sequences - len(self.sequences)

    def bear_sibling(self) -> Sequence:
        """Make the next sequence of the group, in a row kept for it."""
        first, choice = self.sequences[0], len(self.sequences)
        sibling = Sequence(
            sequence_id=first.sequence_id + choice,
            choice=choice,
            prompt=first.prompt,
            row=self.spare_rows.pop(0),
        )
        self.sequences.append(sibling)
        return sibling

    @property
    def is_settled(self) -> bool:
        """Whether every plan that touches it is complete, and its rows are given back."""
        return not any(s.num_in_flight or s.row >= 0 for s in self.sequences)
