"""What a result means for a group: a sampled token, or one step of its beam search.

All decoding methods are built from three operations on sequences (paper, section 5.2): fork makes
one from another, append adds a token, free ends one.
"""

import math
from dataclasses import dataclass, replace
from itertools import accumulate

from engine.core.decoding.beam_search import Candidates, Hypothesis
from engine.core.decoding.output import (
    NO_LOGPROB,
    add_alternatives,
    add_beams,
    add_end,
    add_pooled,
    add_token,
    fill_up,
    pooled_vector,
)
from engine.core.memory.block_manager import BlockManager, BlockTableUpdate
from engine.core.sequence import UNFINISHED, Sequence
from engine.core.sequence_group import RUNNING, SequenceGroup
from engine.types import (
    NONE_ALLOWED,
    PROMPT_CHOICE,
    FinishReason,
    PinnedPrefix,
    RequestEvents,
    StepOutput,
    StepResult,
    StepStats,
)


@dataclass(frozen=True, slots=True)
class BeamFork:
    """A beam that goes on as a fork of another, which the workers have to follow.

    Attributes:
        update: how its block table differs from that of the other beam.
    """

    sequence: Sequence
    update: BlockTableUpdate


@dataclass(frozen=True, slots=True)
class SequenceUpdates:
    """Attributes: ended: sequences that do not go on; forked: beams that go on as forks."""

    ended: tuple[Sequence, ...] = ()
    forked: tuple[BeamFork, ...] = ()


NO_UPDATES = SequenceUpdates()


class Decoding:
    """Turns results into tokens of sequences, and into output for the clients, which it owns."""

    def __init__(self, block_manager: BlockManager) -> None:
        self._block_manager = block_manager
        self._output = StepOutput(step=-1)
        self._result = StepResult(step=-1)
        # where the alternatives of each of its tokens end
        self._top_ends: list[int] = []

    @property
    def has_output(self) -> bool:
        """Whether there is anything for the clients."""
        return bool(self._output.tokens)

    def take_output(
        self,
        step: int,
        stats: StepStats,
        pinned: tuple[PinnedPrefix, ...] | None = None,
        prefix_marks: bytes | None = None,
        *,
        events: RequestEvents | None = None,
    ) -> StepOutput:
        """Return the output since the last call; see `StepOutput`."""
        output, self._output = self._output, StepOutput(step=-1)
        fill_up(output)
        return replace(
            output, step=step, stats=stats, pinned=pinned, prefix_marks=prefix_marks, events=events
        )

    def begin(self, result: StepResult) -> None:
        """Let all that follows be about this result."""
        self._result = result
        self._top_ends = list(accumulate(result.top_counts))

    def accept(self, group: SequenceGroup, sequence: Sequence, position: int) -> SequenceUpdates:
        """Take in the token, or candidates, that the result has for a sequence that goes on.

        Args:
            position: of the sequence in the columns of the result.
        """
        token = self._result.tokens[position]
        if group.beam is not None:
            return self._accept_candidates(group, sequence, token, position)
        if group.deferred_aborts and sequence.choice in group.deferred_aborts:
            return self.abort_choice(group, sequence.choice)
        if token < 0:
            return self._end_without_token(group, sequence, token)
        if group.is_prompt_only:
            if group.request.sampling.pooling != "none":
                add_pooled(self._output, group, pooled_vector(self._result, position))
            return self.end(group, FinishReason.LENGTH)
        sequence.append_token(token, group.stop_ids, group.max_tokens)
        reason = sequence.finish_reason
        self._report(group, sequence.choice, reason, position)
        return NO_UPDATES if reason is UNFINISHED else SequenceUpdates((sequence,))

    def accept_prompt_token(self, group: SequenceGroup, position: int) -> None:
        """Pass on the log-probability of the group's next prompt token.

        Args:
            position: of that token in the columns of the result.
        """
        self._report(group, PROMPT_CHOICE, UNFINISHED, position)
        group.report_prompt_token()

    def end_again(self, group: SequenceGroup) -> None:
        """Report the ends of choices that have ended before their group came here."""
        for sequence in group.sequences if group.beam is None else ():
            if sequence.finish_reason is not UNFINISHED:
                add_end(self._output, group, sequence.choice, sequence.finish_reason)

    def end(self, group: SequenceGroup, reason: FinishReason) -> SequenceUpdates:
        """End all live sequences of a group without a token."""
        live = tuple(group.live)
        for sequence in live:
            sequence.finish(reason)
        not_forked_yet = range(len(group.sequences), group.num_sequences)
        choices = [*(sequence.choice for sequence in live), *not_forked_yet]
        for choice in range(group.request.sampling.n) if group.beam is not None else choices:
            add_end(self._output, group, choice, reason)
        return SequenceUpdates(live)

    def abort_choice(self, group: SequenceGroup, choice: int) -> SequenceUpdates:
        """End one live choice of a group without a token; nothing for a beam search.

        While it is prefilled, its siblings are still to be forked from it or to read what it has
        yet to write: then it ends in place of its next token.
        """
        if group.beam is not None:
            return NO_UPDATES
        is_prefilling = any(s.is_prefilling for s in group.live if s.choice == choice)
        if group.num_pending_forks or is_prefilling:
            group.defer_abort(choice)
            return NO_UPDATES
        ended = group.abort_choice(choice)
        for _ in ended:
            add_end(self._output, group, choice, FinishReason.ABORT)
        return SequenceUpdates(ended)

    def _report(
        self, group: SequenceGroup, choice: int, reason: FinishReason, position: int
    ) -> None:
        """Pass on the token that the result has at a position, and the most likely ones there."""
        output, result = self._output, self._result
        logprob = result.logprobs[position] if result.logprobs else NO_LOGPROB
        add_token(output, group, choice, result.tokens[position], logprob, reason)
        if self._top_ends:
            tops = self._tops(position)
            add_alternatives(output, result.top_tokens[tops], result.top_logprobs[tops])

    def _tops(self, position: int) -> slice:
        """Where the result has the alternatives of a position."""
        end = self._top_ends[position]
        return slice(end - self._result.top_counts[position], end)

    def _candidates(self, position: int) -> Candidates:
        """The (token, logprob) alternatives at a position of the result, most likely first."""
        result, tops = self._result, self._tops(position)
        return list(zip(result.top_tokens[tops], result.top_logprobs[tops], strict=True))

    def _end_without_token(
        self, group: SequenceGroup, sequence: Sequence, token: int
    ) -> SequenceUpdates:
        """End what has no next token; where its rules are why, siblings may have one."""
        if token != NONE_ALLOWED:
            return self.end(group, FinishReason.ERROR)
        sequence.finish(FinishReason.RULED_OUT)
        add_end(self._output, group, sequence.choice, FinishReason.RULED_OUT)
        return SequenceUpdates((sequence,))

    def _accept_candidates(
        self, group: SequenceGroup, sequence: Sequence, token: int, position: int
    ) -> SequenceUpdates:
        """Take in the candidates of one beam; with the last beam's the search makes a step."""
        beam = group.beam
        assert beam is not None
        if group.status is not RUNNING:
            # it was preempted since, and will decode all its beams again
            return NO_UPDATES
        if token < 0:
            return self.end(group, FinishReason.ERROR)
        candidates = self._candidates(position)
        alternatives = candidates[: group.request.sampling.num_logprobs or 0]
        # what the rules leave out has no probability
        alternatives = [pair for pair in alternatives if pair[1] > -math.inf]
        is_complete = beam.offer(sequence.choice, candidates, alternatives)
        return self._step_search(group) if is_complete else NO_UPDATES

    def _step_search(self, group: SequenceGroup) -> SequenceUpdates:
        """Replace the beams of a search by the best candidates (paper, figure 9).

        The best child of a beam goes on in its parent's place: append. Every other child takes the
        place of a beam that has no child, or a new one, and shares the blocks of its parent: fork,
        then append. A beam without a child whose place is not taken is freed. Blocks are copied
        only when one of several children writes into the last block that they share (section 4.4).
        """
        beam = group.beam
        assert beam is not None
        children = beam.advance()
        # a parent has one of its children in its own place, so no fork replaces a parent
        forked = tuple(
            self._fork(group, group.sequences[child.parent], index)
            for index, child in children.items()
            if index != child.parent
        )
        # only now, or a fork would take over the token of its parent's other child
        for index, child in children.items():
            group.sequences[index].append_beam_token(child.token)
        lost = tuple(sequence for sequence in group.live if sequence.choice not in children)
        for sequence in lost:
            sequence.finish(FinishReason.STOP)
            # at once: no plan in flight touches a search that has all its candidates
            self._block_manager.free(sequence.sequence_id)
        if beam.is_done:
            self._report_hypotheses(group)
            return SequenceUpdates(ended=lost)
        if group.request.sampling.report_beams:
            add_beams(self._output, group, children, beam.just_ended, beam.last_alternatives)
        return SequenceUpdates(forked=forked)

    def _fork(self, group: SequenceGroup, parent: Sequence, index: int) -> BeamFork:
        child = group.fork_beam(parent, index)
        return BeamFork(child, self._block_manager.fork(parent.sequence_id, child.sequence_id))

    def _report_hypotheses(self, group: SequenceGroup) -> None:
        assert group.beam is not None
        best = group.beam.finished[: group.request.sampling.n]
        for rank, hypothesis in enumerate(best):
            last = len(hypothesis.tokens) - 1
            end = _end_of(hypothesis)
            for index, token in enumerate(hypothesis.tokens):
                reason = end if index == last else FinishReason.NONE
                add_token(self._output, group, rank, token, hypothesis.logprobs[index], reason)
                if tops := hypothesis.alternatives[index]:
                    tokens, logprobs = zip(*tops, strict=True)
                    add_alternatives(self._output, tokens, logprobs)
        # some ranks are empty where tokens are few, all where the rules allow none
        reason = FinishReason.STOP if best else FinishReason.RULED_OUT
        for rank in range(len(best), group.request.sampling.n):
            add_end(self._output, group, rank, reason)


def _end_of(hypothesis: Hypothesis) -> FinishReason:
    if hypothesis.is_stopped:
        return FinishReason.STOP
    return FinishReason.PATTERN if hypothesis.is_matched else FinishReason.LENGTH
