"""The sequences of one request, and every change of the state of their group.

As in `sequence`, no other module assigns to a field. Who calls what:

    Queues           start_running, preempt
    Planner          take_rows, start_prefill, schedule_decodes, fork_sibling, count_overtake
    Scheduler        receive_results, finish
    Decoding         fork_beam, defer_abort, abort_choice, report_prompt_token
    DeferredRelease  release_reserved_rows
    resumption       resume_prompt, resume_choices, resume_beams, defer_abort

What is reported beside tokens has its own changes of state, in `group_reports`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from engine.core.decoding.beam_search import BeamSearch
from engine.core.decoding.group_reports import GroupReports
from engine.core.sequence import UNFINISHED, Sequence
from engine.types import FinishReason, IntColumn, Request, SamplingParams, int32


class Status(Enum):
    """Where a group is."""

    WAITING = auto()
    RUNNING = auto()
    SWAPPED = auto()
    FINISHED = auto()


# see `UNFINISHED`
RUNNING = Status.RUNNING


@dataclass(eq=False, slots=True, kw_only=True)
class SequenceGroup:
    """The sequences of one request: first one; its siblings are forked from it after the prefill.

    A group is allocated, preempted and swapped as a whole (paper, section 4.5).

    Attributes:
        max_tokens: tokens that each sequence may generate, clipped to the model's context.
        stop_ids: token ids that end a sequence.
        num_sequences: sequences once it has forked.
        is_prompt_only: whether it ends with its prompt, of which a pin or a pooled vector is made.
        row_sampling: the parameters that the workers use for its rows.
        beam: state of its beam search; None for sampling.
        reserved_rows: rows kept for siblings that are not forked yet.
        num_overtakes: later groups that have entered while it was swapped out.
        num_prompt_reported: prompt tokens whose log-probability has been reported, if asked for.
        reports: what is reported of it beside its tokens.
        deferred_aborts: choices that end in place of their next token.
        place: number of its first entrance into the batch; -1 before.
    """

    request: Request
    sequences: list[Sequence]
    max_tokens: int
    stop_ids: frozenset[int]
    num_sequences: int
    row_sampling: SamplingParams
    is_prompt_only: bool = False
    beam: BeamSearch | None = None
    reserved_rows: list[int] = field(default_factory=list)
    status: Status = Status.WAITING
    num_overtakes: int = 0
    num_prompt_reported: int = 0
    reports: GroupReports = field(default_factory=GroupReports)
    deferred_aborts: set[int] = field(default_factory=set)
    place: int = -1

    @property
    def num_prompt_logprobs(self) -> int:
        """Leading prompt positions whose following token has a log-probability to report."""
        asks = self.request.sampling.prompt_logprobs is not None
        return len(self.request.prompt) - 1 if asks else 0

    @property
    def is_suspect(self) -> bool:
        """Whether engines may have died of it, so that it is on probation first."""
        return self.request.progress is not None and self.request.progress.solo_tokens > 0

    @property
    def is_on_probation(self) -> bool:
        """Whether no other group may run beside it yet."""
        progress = self.request.progress
        if progress is None or not progress.solo_tokens:
            return False
        begun = len(progress.search.counts) if progress.search else max(progress.counts, default=0)
        return max(len(s.output) for s in self.sequences) < begun + progress.solo_tokens

    @property
    def has_begun(self) -> bool:
        """Whether it has been in the batch, here or in an engine that is lost."""
        return self.place >= 0 or self.request.progress is not None

    @property
    def live(self) -> list[Sequence]:
        """Sequences that go on."""
        return [s for s in self.sequences if s.finish_reason is UNFINISHED]

    @property
    def with_row(self) -> list[Sequence]:
        """Sequences that need a row: live ones, and ended beams that may be forked into again."""
        return self.sequences if self.beam is not None else self.live

    @property
    def num_rows(self) -> int:
        """Rows that it needs in the batch, those of siblings still to be forked included."""
        return len(self.with_row) + self.num_pending_forks

    @property
    def ready(self) -> list[Sequence]:
        """Sequences whose next token can be planned; none unless the group runs."""
        return [sequence for _, sequence in ready_members([self])]

    @property
    def is_prefilling(self) -> bool:
        """Whether it is running and known tokens of it are still to be prefilled."""
        return self.status is RUNNING and any(s.is_prefilling for s in self.sequences)

    @property
    def num_pending_forks(self) -> int:
        """Siblings that are still to be forked."""
        return self.num_sequences - len(self.sequences)

    @property
    def is_settled(self) -> bool:
        """Whether every plan that touches it is complete, and its rows are given back."""
        return not any(s.num_in_flight or s.row >= 0 for s in self.sequences)

    def resume_prompt(self, num_reported: int) -> None:
        """Note how many prompt tokens a lost engine has reported the log-probabilities of."""
        self.num_prompt_reported = num_reported

    def resume_choices(self, choices: Iterable[tuple[IntColumn, FinishReason]]) -> None:
        """Take up sequences that have begun, in order: the output of each, and how it has ended."""
        first = self.sequences[0]
        self.sequences = [
            Sequence(
                sequence_id=first.sequence_id + choice,
                choice=choice,
                prompt=first.prompt,
                output=output,
                finish_reason=reason,
            )
            for choice, (output, reason) in enumerate(choices)
        ]
        if self.beam is None:
            self.reports.note_resumption()

    def resume_beams(self, outputs: Mapping[int, IntColumn]) -> None:
        """Take up the open beams of a search by index; those between them may be forked into."""
        gap = (int32(), FinishReason.STOP)
        self.resume_choices(
            (outputs[index], UNFINISHED) if index in outputs else gap
            for index in range(max(outputs) + 1)
        )

    def start_running(self, place: int = 0) -> None:
        """Enter the batch, for the first time or after a preemption.

        Args:
            place: see `place`; it keeps the one of the first time.
        """
        assert self.status in (Status.WAITING, Status.SWAPPED)
        assert self.is_settled
        self.status = RUNNING
        if self.place < 0:
            self.place = place

    def take_rows(self, rows: list[int]) -> None:
        """Take `num_rows` free rows: one for each sequence, the others for pending forks."""
        assert len(rows) == self.num_rows
        sequences = self.with_row
        for sequence, row in zip(sequences, rows, strict=False):
            sequence.row = row
        self.reserved_rows = rows[len(sequences) :]

    def start_prefill(self, num_cached: list[int]) -> None:
        """Prefill all known tokens of the live sequences, to which blocks were just allocated.

        Args:
            num_cached: for each live sequence the leading tokens that need not be computed.
        """
        for sequence, count in zip(self.live, num_cached, strict=True):
            assert count < sequence.num_known
            sequence.prefill_end = sequence.num_known
            sequence.num_scheduled = count
        # of a search that goes on from another engine's beams, its output may be cached too
        self.reports.note_cached_tokens(min(num_cached[0], len(self.request.prompt)))

    def fork_sibling(self, parent: Sequence, step: int) -> Sequence:
        """Make the next sequence of the group, in a reserved row, as a fork of a parent.

        Its first token is sampled by the plan that ends the parent's prefill, as the parent's is.
        """
        assert not parent.is_prefilling
        sibling = self._add_sequence()
        sibling.prefill_end = parent.prefill_end
        sibling.num_scheduled = parent.num_scheduled
        sibling.num_in_flight = 1
        sibling.last_step = step
        return sibling

    def fork_beam(self, parent: Sequence, index: int) -> Sequence:
        """Let the beam with an index go on as a fork of another one."""
        while len(self.sequences) <= index:
            self._add_sequence()
        child = self.sequences[index]
        child.become_fork(parent)
        return child

    def preempt(self, *, swap: bool, step: int) -> None:
        """Leave the batch because blocks ran out (paper, section 4.5).

        Args:
            swap: whether its blocks are copied to the swap space, so that it goes on where it was;
                otherwise everything known is prefilled again.
            step: the plan that copies them; -1 if none does.
        """
        assert self.status is RUNNING
        self.reports.note_preemption()
        if self.beam is not None:
            # candidates that are still in flight come too late; all beams are decoded again
            self.beam.withdraw_offers()
        for sequence in self.live:
            if not swap:
                sequence.restart()
                continue
            assert not sequence.is_prefilling
            sequence.last_step = max(sequence.last_step, step)
            if self.beam is not None:
                sequence.rewind()
        self.status = Status.SWAPPED if swap else Status.WAITING

    def recompute(self) -> None:
        """Give up what was swapped out: prefill everything known again instead."""
        assert self.status is Status.SWAPPED
        for sequence in self.live:
            sequence.restart()
        self.status = Status.WAITING

    def count_overtake(self) -> None:
        """Note that a later group has entered before it."""
        self.num_overtakes += 1

    def release_reserved_rows(self) -> Iterable[int]:
        """Give up the rows kept for siblings, the last first; no plan touches them."""
        rows, self.reserved_rows = self.reserved_rows, []
        return reversed(rows)

    def defer_abort(self, choice: int) -> None:
        """End a choice in place of its next token, since others still need what it computes."""
        self.deferred_aborts.add(choice)

    def abort_choice(self, choice: int) -> tuple[Sequence, ...]:
        """End the sequence of a choice, if it goes on; returns what has ended."""
        self.deferred_aborts.discard(choice)
        own = tuple(sequence for sequence in self.live if sequence.choice == choice)
        for sequence in own:
            sequence.finish(FinishReason.ABORT)
        return own

    def finish(self) -> None:
        """Note that its last sequence has ended."""
        assert self.status is not Status.FINISHED
        assert not self.live
        self.status = Status.FINISHED

    def report_prompt_token(self) -> None:
        """Note that the log-probability of its next prompt token is reported."""
        assert self.num_prompt_reported < self.num_prompt_logprobs
        self.num_prompt_reported += 1

    def _add_sequence(self) -> Sequence:
        first, choice = self.sequences[0], len(self.sequences)
        sequence = Sequence(
            sequence_id=first.sequence_id + choice,
            choice=choice,
            prompt=first.prompt,
            row=self.reserved_rows.pop(0),
        )
        self.sequences.append(sequence)
        return sequence


# a group and one of its sequences
Member = tuple[SequenceGroup, Sequence]


def ready_members(groups: Iterable[SequenceGroup]) -> list[Member]:
    """Sequences of running groups whose next token can be planned, with their groups.

    A function over the batch and not a method, since calls for each group would take time.
    """
    return [
        (group, s)
        for group in groups
        if group.status is RUNNING
        for s in group.sequences
        if s.num_scheduled >= s.prefill_end
        and s.finish_reason is UNFINISHED
        and len(s.output) + s.num_in_flight < group.max_tokens
        # the next token of a beam is known only when all beams have their candidates
        and (group.beam is None or s.num_scheduled < len(s.prompt) + len(s.output))
    ]


def schedule_decodes(ready: list[Member], step: int) -> None:
    """Plan the next token of each of these sequences; a function, see `ready_members`."""
    for _, sequence in ready:
        sequence.num_scheduled += 1
        sequence.num_in_flight += 1
        sequence.last_step = step


def receive_results(sampled: list[Member]) -> None:
    """Note that one token of each of these sequences is no longer in flight.

    Whether it is kept is decided afterwards: it is dropped where the sequence has ended meanwhile.
    """
    for _, sequence in sampled:
        sequence.num_in_flight -= 1
