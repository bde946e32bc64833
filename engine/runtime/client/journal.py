"""What an ingress keeps of an open request, so that another engine can go on with it."""

from array import array
from dataclasses import replace

from engine.runtime.protocol import BeamStep, Delta
from engine.types import (
    PROMPT_CHOICE,
    FinishReason,
    Progress,
    Request,
    SearchSteps,
    int32,
)


class Journal:
    """One request and what its reader has got, read or not.

    A delta costs the appending of its columns. What is kept is bounded by what admission bounds:
    the prompt, `max_tokens` for each choice, and two rows for each beam and token of a search that
    reports its beams. A choice that has ended is dropped but for its end.
    """

    def __init__(self, request: Request, now_s: float) -> None:
        """Begin with a request that nothing has come of.

        Args:
            now_s: seconds on the clock of `resumed`.
        """
        self._request = request
        self._arrival_s = now_s
        self._outputs = [int32() for _ in range(request.sampling.n)]
        self._finish_reasons = array("b", bytes(request.sampling.n))
        self._num_prompt_scored = 0
        self._search = SearchSteps()

    @property
    def has_begun(self) -> bool:
        """Whether anything has come of it."""
        return bool(
            self._num_prompt_scored
            or any(self._outputs)
            or any(self._finish_reasons)
            or self._search.counts
        )

    def note(self, delta: Delta) -> None:
        """Take in what the reader gets."""
        choice = delta.choice
        if choice >= 0:
            if delta.finish_reason is FinishReason.NONE:
                self._outputs[choice] += delta.tokens
            else:
                self.end(choice, delta.finish_reason)
        elif choice == PROMPT_CHOICE:
            self._num_prompt_scored += len(delta.tokens)
        else:
            for step in delta.beam_steps:
                self._note_step(step)

    def end(self, choice: int, reason: FinishReason) -> None:
        """Note that a choice has ended, of itself or by its reader's will."""
        self._finish_reasons[choice] = reason
        self._outputs[choice] = int32()

    def new(self, request_id: int) -> Request:
        """The request as if it came now: what it has waited for a lost engine does not count."""
        return replace(self._request, request_id=request_id)

    def resumed(self, request_id: int, now_s: float, *, solo_tokens: int) -> Request:
        """The request as another engine can go on with it.

        Args:
            request_id: a new one, so that what the lost engine may still send is not taken for the
                output of the other.
            solo_tokens: see `Progress`.
        """
        sampling = self._request.sampling
        if sampling.beam_width and not sampling.report_beams:
            # how far it was when engines died is unknown
            solo_tokens = sampling.max_tokens if solo_tokens else 0
        progress = Progress(
            age_s=now_s - self._arrival_s,
            solo_tokens=min(solo_tokens, sampling.max_tokens),
            num_prompt_scored=self._num_prompt_scored,
            search=self._search if self._search.counts else None,
        )
        # the choices of a beam search come all at once, at its end
        if not sampling.beam_width:
            progress = replace(
                progress,
                finish_reasons=self._finish_reasons,
                counts=int32(list(map(len, self._outputs))),
                tokens=sum(self._outputs, start=int32()),
            )
        return replace(self._request, request_id=request_id, progress=progress)

    def _note_step(self, step: BeamStep) -> None:
        search = self._search
        num_rows = len(search.indices)
        if step.top_counts:
            # empty until the first row that has any
            search.top_counts.extend([0] * (num_rows - len(search.top_counts)))
            search.top_counts.extend(step.top_counts)
            search.top_tokens.extend(step.top_tokens)
            search.top_logprobs.extend(step.top_logprobs)
        elif search.top_counts:
            search.top_counts.extend([0] * len(step.indices))
        search.counts.append(len(step.indices))
        search.indices.extend(step.indices)
        search.parents.extend(step.parents)
        search.tokens.extend(step.tokens)
        search.logprobs.extend(step.logprobs)
