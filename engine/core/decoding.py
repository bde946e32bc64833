"""What a result means for a group: a sampled token, or one step of its beam search.

Both are built from three operations on sequences: fork, append and free (paper, section 5.2).
"""

import math
from dataclasses import dataclass

from engine.core.beam_search import Hypothesis
from engine.core.memory import Growth, Memory
from engine.core.output import OutputBuilder
from engine.core.sequence import UNFINISHED, Sequence, SequenceGroup
from engine.types import FinishReason, StepResult


@dataclass(frozen=True, slots=True)
class Fork:
    """A sequence whose row takes over the state of another, and how its blocks differ then."""

    sequence: Sequence
    growth: Growth


@dataclass(frozen=True, slots=True)
class Outcome:
    """Attributes: ended: sequences that do not go on; forked: sequences that others go on as."""

    ended: tuple[Sequence, ...] = ()
    forked: tuple[Fork, ...] = ()


_GOES_ON = Outcome()


class Decoding:
    """Turns results into tokens of sequences, and into news for the ingresses."""

    def __init__(self, memory: Memory, output: OutputBuilder) -> None:
        self._memory = memory
        self._output = output

    def accept(
        self, group: SequenceGroup, sequence: Sequence, result: StepResult, position: int
    ) -> Outcome:
        """Take in the entry of a result that belongs to a sequence."""
        if sequence.choice in group.unwanted:
            return self.give_up(group, sequence.choice)
        if result.tokens[position] < 0:
            return self.end(group, FinishReason.ERROR)
        if group.beam is not None:
            return self._search(group, sequence, result, position)
        if group.request.pin is not None:
            return self.end(group, FinishReason.LENGTH)
        token = result.tokens[position]
        sequence.output.append(token)
        sequence.finish_reason = _finish_reason(group, sequence, token)
        self._output.token(group, sequence, position)
        return _GOES_ON if sequence.finish_reason is UNFINISHED else Outcome((sequence,))

    def end(self, group: SequenceGroup, reason: FinishReason) -> Outcome:
        """End all live sequences of a group without a token."""
        live = tuple(group.live)
        for sequence in live:
            sequence.finish_reason = reason
        unborn = range(len(group.sequences), group.num_sequences)
        choices = [*(sequence.choice for sequence in live), *unborn]
        for choice in range(group.request.sampling.n) if group.beam is not None else choices:
            self._output.end(group, choice, reason)
        return Outcome(live)

    def give_up(self, group: SequenceGroup, choice: int) -> Outcome:
        """End one live choice of a group without a token; nothing for a beam search.

        While it is prefilled others are to be born from it, or to read what it has yet to write:
        then it ends in place of its next token.
        """
        if group.beam is not None:
            return _GOES_ON
        own = tuple(sequence for sequence in group.live if sequence.choice == choice)
        if group.num_unborn or any(sequence.is_prefilling for sequence in own):
            group.unwanted.add(choice)
            return _GOES_ON
        group.unwanted.discard(choice)
        for sequence in own:
            sequence.finish_reason = FinishReason.ABORT
            self._output.end(group, choice, FinishReason.ABORT)
        return Outcome(own)

    def _search(
        self, group: SequenceGroup, sequence: Sequence, result: StepResult, position: int
    ) -> Outcome:
        beam = group.beam
        assert beam is not None
        candidates = self._output.alternatives(position)
        alternatives = candidates[: group.request.sampling.num_logprobs or 0]
        # what the rules leave out has no probability
        alternatives = [pair for pair in alternatives if pair[1] > -math.inf]
        if not beam.offer(sequence.choice, candidates, alternatives):
            return _GOES_ON
        children = beam.advance()
        parents = {index: group.sequences[child.parent] for index, child in children.items()}
        forked = tuple(
            self._fork(group, parents[index], index)
            for index, child in children.items()
            if index != child.parent
        )
        for index, child in children.items():
            group.sequences[index].output.append(child.token)
        dead = tuple(s for s in group.live if s.choice not in children)
        for lost in dead:
            lost.finish_reason = FinishReason.STOP
            self._memory.free(lost.sequence_id)
        if beam.is_done:
            self._tell_hypotheses(group)
            return Outcome(ended=dead)
        if group.request.sampling.tell_beams:
            self._output.beams(group, children, beam.just_ended)
        return Outcome(forked=forked)

    def _fork(self, group: SequenceGroup, parent: Sequence, index: int) -> Fork:
        while len(group.sequences) <= index:
            group.bear_sibling()
        child = group.sequences[index]
        growth = self._memory.fork(parent.sequence_id, child.sequence_id)
        child.become_fork(parent)
        return Fork(child, growth)

    def _tell_hypotheses(self, group: SequenceGroup) -> None:
        assert group.beam is not None
        best = group.beam.finished[: group.request.sampling.n]
        for rank, hypothesis in enumerate(best):
            last = len(hypothesis.tokens) - 1
            reason = _end_of(hypothesis)
            for index, token in enumerate(hypothesis.tokens):
                self._output.append(
                    group,
                    rank,
                    token,
                    hypothesis.logprobs[index],
                    reason if index == last else FinishReason.NONE,
                    hypothesis.alternatives[index],
                )
        for rank in range(len(best), group.request.sampling.n):
            self._output.end(group, rank, FinishReason.STOP)


def _end_of(hypothesis: Hypothesis) -> FinishReason:
    if hypothesis.is_stopped:
        return FinishReason.STOP
    return FinishReason.PATTERN if hypothesis.is_matched else FinishReason.LENGTH


def _finish_reason(group: SequenceGroup, sequence: Sequence, token: int) -> FinishReason:
    if token in group.stop_ids:
        return FinishReason.STOP
    if len(sequence.output) == group.max_tokens:
        return FinishReason.LENGTH
    return UNFINISHED
