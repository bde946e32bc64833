"""Collects the output of a step for the clients, one item per new token or ended sequence."""

from array import array
from collections.abc import Mapping
from itertools import accumulate

from engine.core.decoding.beam_search import Candidates, Child
from engine.core.sequence import Sequence
from engine.core.sequence_group import SequenceGroup
from engine.types import (
    PROMPT_CHOICE,
    FinishReason,
    IntColumn,
    PinnedPrefix,
    RequestEvents,
    StepOutput,
    StepResult,
    StepStats,
    float32,
    int32,
    int64,
)

_NO_LOGPROB = float("nan")


class OutputBuilder:
    """Columns of the next StepOutput."""

    def __init__(self) -> None:
        self._result = StepResult(step=-1)
        self._top_ends: list[int] = []
        self._clear()

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def begin(self, result: StepResult) -> None:
        """Take the following tokens and their alternatives from this result."""
        self._result = result
        self._top_ends = list(accumulate(result.top_counts))

    def token(self, group: SequenceGroup, sequence: Sequence, position: int) -> None:
        """Add the token at `position` of the result, and whether it was the sequence's last."""
        self._pass_on(group, sequence.choice, position, sequence.finish_reason)

    def prompt_token(self, group: SequenceGroup, position: int) -> None:
        """Add the prompt's token at `position` of the result."""
        self._pass_on(group, PROMPT_CHOICE, position, FinishReason.NONE)

    def alternatives(self, position: int) -> list[tuple[int, float]]:
        """The (token, logprob) alternatives at `position` of the result, most likely first."""
        result, end = self._result, self._top_ends[position]
        start = end - result.top_counts[position]
        return list(zip(result.top_tokens[start:end], result.top_logprobs[start:end], strict=True))

    def append(
        self,
        group: SequenceGroup,
        choice: int,
        token: int,
        logprob: float,
        reason: FinishReason,
        alternatives: Candidates = (),
    ) -> None:
        """Add one token of a choice, and the most likely ones at its place."""
        if group.num_cached_tokens > 0 and not group.is_cache_reported:
            self._extend_to_here(self._cached_tokens)
            self._cached_tokens.append(group.report_cached_tokens())
        if group.num_unreported_preemptions:
            self._extend_to_here(self._preemptions)
            self._preemptions.append(group.report_preemptions())
        self._request_ids.append(group.request.request_id)
        self._choices.append(choice)
        self._tokens.append(token)
        self._logprobs.append(logprob)
        self._finish_reasons.append(reason)
        if alternatives:
            self._begin_alternatives(len(alternatives))
            self._top_tokens.extend(token for token, _ in alternatives)
            self._top_logprobs.extend(logprob for _, logprob in alternatives)

    def end(self, group: SequenceGroup, choice: int, reason: FinishReason) -> None:
        """Add the end of a choice without a token."""
        self.append(group, choice, -1, _NO_LOGPROB, reason)

    def beams(
        self,
        group: SequenceGroup,
        open_: Mapping[int, Child],
        ended: list[tuple[int, Child]],
        alternatives: Mapping[int, Candidates],
    ) -> None:
        """Add one step of a search that goes on: its beams by index, and what it has ended.

        Args:
            alternatives: by index of the parent, the most likely tokens in the place of the new
                ones.
        """
        for index, child in (*ended, *open_.items()):
            if tops := alternatives[child.parent]:
                # as with `top_counts`, earlier rows without any are filled in only now
                missing = len(self._beam_requests) - len(self._beam_top_counts)
                self._beam_top_counts.extend([0] * missing)
                self._beam_top_counts.append(len(tops))
                self._beam_top_tokens.extend(token for token, _ in tops)
                self._beam_top_logprobs.extend(logprob for _, logprob in tops)
            self._beam_requests.append(group.request.request_id)
            self._beam_indices.append(index)
            self._beam_parents.append(child.parent)
            self._beam_tokens.append(child.token)
            self._beam_logprobs.append(child.logprob)

    def build(
        self,
        step: int,
        stats: StepStats,
        pinned: tuple[PinnedPrefix, ...] | None = None,
        prefix_marks: bytes | None = None,
        events: RequestEvents | None = None,
    ) -> StepOutput:
        """Return the columns and start anew."""
        # columns that are empty stay so; the others get a value for every item
        for column in (self._cached_tokens, self._preemptions, self._top_counts):
            if column:
                self._extend_to_here(column)
        if self._beam_top_counts:
            missing = len(self._beam_requests) - len(self._beam_top_counts)
            self._beam_top_counts.extend([0] * missing)
        output = StepOutput(
            step=step,
            request_ids=self._request_ids,
            choices=self._choices,
            tokens=self._tokens,
            logprobs=self._logprobs,
            finish_reasons=self._finish_reasons,
            top_counts=self._top_counts,
            top_tokens=self._top_tokens,
            top_logprobs=self._top_logprobs,
            stats=stats,
            cached_tokens=self._cached_tokens,
            preemptions=self._preemptions,
            pinned=pinned,
            prefix_marks=prefix_marks,
            beam_requests=self._beam_requests,
            beam_indices=self._beam_indices,
            beam_parents=self._beam_parents,
            beam_tokens=self._beam_tokens,
            beam_logprobs=self._beam_logprobs,
            beam_top_counts=self._beam_top_counts,
            beam_top_tokens=self._beam_top_tokens,
            beam_top_logprobs=self._beam_top_logprobs,
            events=events,
        )
        self._clear()
        return output

    def _pass_on(
        self, group: SequenceGroup, choice: int, position: int, reason: FinishReason
    ) -> None:
        result = self._result
        logprob = result.logprobs[position] if result.logprobs else _NO_LOGPROB
        self.append(group, choice, result.tokens[position], logprob, reason)
        if not self._top_ends:
            return
        count = result.top_counts[position]
        end = self._top_ends[position]
        self._begin_alternatives(count)
        self._top_tokens += result.top_tokens[end - count : end]
        self._top_logprobs += result.top_logprobs[end - count : end]

    def _extend_to_here(self, column: IntColumn) -> None:
        """Fill in zeros for the items before the next one."""
        column.extend([0] * (len(self._tokens) - len(column)))

    def _begin_alternatives(self, count: int) -> None:
        # earlier items without alternatives are filled in only once an item has some
        self._top_counts.extend([0] * (len(self._tokens) - 1 - len(self._top_counts)))
        self._top_counts.append(count)

    def _clear(self) -> None:
        self._request_ids = int64()
        self._choices = int32()
        self._tokens = int32()
        self._logprobs = float32()
        self._finish_reasons = array("b")
        self._top_counts = int32()
        self._top_tokens = int32()
        self._top_logprobs = float32()
        self._cached_tokens = int32()
        self._preemptions = int32()
        self._beam_requests = int64()
        self._beam_indices = int32()
        self._beam_parents = int32()
        self._beam_tokens = int32()
        self._beam_logprobs = float32()
        self._beam_top_counts = int32()
        self._beam_top_tokens = int32()
        self._beam_top_logprobs = float32()
