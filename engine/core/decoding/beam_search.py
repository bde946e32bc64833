"""Beam search over the candidates of each step, like `generate(num_beams=width)` of transformers.

Scores are cumulative log-probabilities; a finished hypothesis is ranked by
score / length ** length_penalty, where the length counts generated tokens including the last.
Source: https://huggingface.co/docs/transformers/main/en/generation_strategies#beam-search
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from engine.core.decoding.search_steps import StepRow, rows_of
from engine.core.decoding.stop_pattern import NO_STATES, States, StopPatternMatcher
from engine.errors import InvalidRequest
from engine.types import ENDED_BY_PATTERN, ENDED_BY_TOKEN, SearchSteps, StopPattern

EarlyStopping = bool | Literal["never"]
# (token, log-probability), most likely first
Candidates = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished continuation.

    Attributes:
        tokens, logprobs: generated tokens, the stop token included.
        alternatives: for each token the most likely ones at its place, as many as asked for.
        score: length-penalised cumulative log-probability.
        is_stopped: whether a stop token ended it.
        is_matched: whether its last token met the stop pattern.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    alternatives: tuple[Candidates, ...]
    score: float
    is_stopped: bool
    is_matched: bool


class Child(NamedTuple):
    """One beam of the next step; a tuple, since a batch makes hundreds of them in a step.

    Attributes:
        parent: index of the beam that it continues.
        token, logprob: what it adds.
        cumulative: its score without length penalty.
    """

    parent: int
    token: int
    logprob: float
    cumulative: float


class _Beam(NamedTuple):
    """The last token of a beam, linked to the beam that it goes on from, which others may share."""

    parent: "_Beam | None" = None
    token: int = -1
    logprob: float = 0.0
    alternatives: Candidates = ()
    cumulative: float = 0.0
    states: States = NO_STATES

    def path(self) -> "list[_Beam]":
        """Beams from the first token to this one."""
        path, beam = [], self
        while beam.parent is not None:
            path.append(beam)
            beam = beam.parent
        return path[::-1]


class BeamSearch:
    """The open beams and finished hypotheses of one request.

    Beams are known by index, 0 to width - 1; before the first step there is only beam 0.

    Attributes:
        finished: hypotheses, best first.
        just_ended: hypotheses of the last step, each with how it ended, as `StepOutput` has it.
        is_done: whether no better hypothesis is to be found.
    """

    def __init__(
        self,
        *,
        width: int,
        max_tokens: int,
        stop_ids: frozenset[int],
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        stop_pattern: StopPattern | None = None,
    ) -> None:
        """Args: stop_pattern: ends hypotheses as stop ids do."""
        self.width = width
        self.finished: list[Hypothesis] = []
        self.just_ended: list[tuple[int, Child]] = []
        self.is_done = False
        self._max_tokens = max_tokens
        self._stop_ids = stop_ids
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping
        self._pattern_from = 0 if stop_pattern is None else stop_pattern.min_tokens
        self._pattern = None if stop_pattern is None else StopPatternMatcher(stop_pattern)
        self._length = 0
        self._beams: dict[int, _Beam] = {0: _Beam()}
        self._offered: dict[int, Candidates] = {}
        self._alternatives: dict[int, Candidates] = {}

    @property
    def num_candidates(self) -> int:
        """Most likely tokens to offer for each beam: enough that `width` of them go on."""
        return (1 + max(1, len(self._stop_ids))) * self.width

    @property
    def last_alternatives(self) -> Mapping[int, Candidates]:
        """Alternatives in the place of the last step's tokens, by index of the parent."""
        return self._alternatives

    def offer(self, beam: int, candidates: Candidates, alternatives: Candidates = ()) -> bool:
        """Give the search the most likely (token, logprob) pairs of one beam.

        Args:
            alternatives: those of them that the output shows for this place.

        Returns:
            Whether every open beam has been offered some, so that `advance` may be called.
        """
        self._offered[beam] = candidates
        self._alternatives[beam] = alternatives
        return len(self._offered) == len(self._beams)

    def withdraw_offers(self) -> None:
        """Forget what was offered since the last step; all beams will offer again."""
        self._offered = {}

    def advance(self) -> dict[int, Child]:
        """Choose the beams of the next step among the candidates of all beams.

        The best `width` candidates that do not end a hypothesis go on. A parent keeps its index for
        its best child, so that this child needs no fork; other children take the indices of beams
        without children.

        Returns:
            The new beams by index; empty when the search is done.
        """
        self._length += 1
        self.just_ended = []
        is_last = self._length == self._max_tokens
        going_on: list[Child] = []
        for rank, child in enumerate(self._rank()):
            if rank >= self.width and len(going_on) == self.width:
                break
            if not is_last and self._goes_on(child):
                going_on.append(child)
            elif rank < self.width:
                self._finish(child)
        chosen = going_on[: self.width]
        self._check_done(chosen)
        placed = {} if self.is_done else self._place(chosen)
        self._beams = {index: self._extend(child) for index, child in placed.items()}
        self._offered = {}
        return placed

    def replay(self, steps: SearchSteps) -> dict[int, list[int]]:
        """Repeat what an equal search has done so far, from the steps that it has reported.

        Returns:
            Tokens of the open beams by index.

        Raises:
            InvalidRequest: if no search of this kind that goes on makes such steps.
        """
        for rows in rows_of(steps):
            self._length += 1
            self._alternatives = {row.parent: row.alternatives for row in rows}
            children: dict[int, Child] = {}
            for row in rows:
                child = self._repeated(row)
                if row.beam < 0:
                    self._finish(child)
                elif children.setdefault(row.beam, child) is not child:
                    raise _not_this_search(f"beam {row.beam} goes on twice")
            if not children or self._length >= self._max_tokens:
                raise _not_this_search("the search has ended")
            self._beams = {index: self._extend(child) for index, child in children.items()}
        return {index: [step.token for step in beam.path()] for index, beam in self._beams.items()}

    def _repeated(self, row: StepRow) -> Child:
        if row.parent not in self._beams or row.token < 0:
            raise _not_this_search(f"there is no beam {row.parent}, or no token {row.token}")
        if row.beam >= self.width or row.beam < ENDED_BY_PATTERN:
            raise _not_this_search(f"there is no beam {row.beam}")
        cumulative = self._beams[row.parent].cumulative + row.logprob
        child = Child(row.parent, row.token, row.logprob, cumulative)
        if self._goes_on(child) != (row.beam >= 0):
            raise _not_this_search(f"token {row.token} ends what goes on, or does not end it")
        return child

    def _rank(self) -> Iterator[Child]:
        """The best candidates of all beams; of equal ones the first beam's, then the first."""
        scores: list[float] = []
        parents: list[int] = []
        candidates: list[tuple[int, float]] = []
        for index, offered in sorted(self._offered.items()):
            cumulative = self._beams[index].cumulative
            scores += [cumulative + logprob for _, logprob in offered]
            parents += [index] * len(offered)
            candidates += offered
        # sorted is stable also in reverse; plain floats are compared much faster than tuples
        best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        for place in best[: self.num_candidates]:
            # what is not allowed comes with probability 0
            if scores[place] > -math.inf:
                yield Child(parents[place], *candidates[place], scores[place])

    def _goes_on(self, child: Child) -> bool:
        if child.token in self._stop_ids:
            return False
        return self._pattern is None or self._states_after(child) is not None

    def _states_after(self, child: Child) -> States | None:
        """States after the last token of a child; None if it meets the pattern."""
        if self._pattern is None or self._length <= self._pattern_from:
            return NO_STATES
        return self._pattern.advance(self._beams[child.parent].states, child.token)

    def _finish(self, child: Child) -> None:
        is_stopped = child.token in self._stop_ids
        self.just_ended.append((ENDED_BY_TOKEN if is_stopped else ENDED_BY_PATTERN, child))
        path = self._extend(child).path()
        hypothesis = Hypothesis(
            tokens=tuple(beam.token for beam in path),
            logprobs=tuple(beam.logprob for beam in path),
            alternatives=tuple(beam.alternatives for beam in path),
            score=child.cumulative / self._length**self._length_penalty,
            is_stopped=is_stopped,
            is_matched=not is_stopped and self._states_after(child) is None,
        )
        self.finished.append(hypothesis)
        # stable: of equal scores the earlier one stays ahead
        self.finished.sort(key=lambda finished: -finished.score)
        del self.finished[self.width :]

    def _check_done(self, chosen: list[Child]) -> None:
        is_full = len(self.finished) == self.width
        if not chosen or (is_full and self._early_stopping is True):
            self.is_done = True
        elif is_full:
            # with "never" the best that an open beam can reach is at full length
            at_best = self._length
            if self._early_stopping == "never" and self._length_penalty > 0:
                at_best = self._max_tokens
            best = chosen[0].cumulative / at_best**self._length_penalty
            self.is_done = best <= self.finished[-1].score

    def _place(self, chosen: list[Child]) -> dict[int, Child]:
        placed: dict[int, Child] = {}
        moving = []
        for child in chosen:
            if child.parent in placed:
                moving.append(child)
            else:
                placed[child.parent] = child
        free = (index for index in range(self.width) if index not in placed)
        placed.update(zip(free, moving, strict=False))
        return placed

    def _extend(self, child: Child) -> _Beam:
        return _Beam(
            self._beams[child.parent],
            child.token,
            child.logprob,
            self._alternatives[child.parent],
            child.cumulative,
            self._states_after(child) or NO_STATES,
        )


def _not_this_search(reason: str) -> InvalidRequest:
    return InvalidRequest(f"the search cannot go on: {reason}", param="progress")
