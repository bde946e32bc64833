"""What a request has got from an engine that is lost, so that another one goes on with it."""

from dataclasses import dataclass, field

from engine.types.columns import FloatColumn, IntColumn, float32, int8, int32


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSteps:
    """Steps of a beam search that reports its beams, as it has reported them.

    The open beams, the finished hypotheses and their scores follow from them. No larger than
    2 * beam_width * max_tokens rows.

    Attributes:
        counts: int32 rows of each step.
        indices, parents, tokens, logprobs: the rows, see `StepOutput.beam_indices`.
        top_counts, top_tokens, top_logprobs: alternatives of each row's token, see
            `StepOutput.beam_top_counts`; `top_counts` is empty when no row has any.
    """

    counts: IntColumn = field(default_factory=int32)
    indices: IntColumn = field(default_factory=int32)
    parents: IntColumn = field(default_factory=int32)
    tokens: IntColumn = field(default_factory=int32)
    logprobs: FloatColumn = field(default_factory=float32)
    top_counts: IntColumn = field(default_factory=int32)
    top_tokens: IntColumn = field(default_factory=int32)
    top_logprobs: FloatColumn = field(default_factory=float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a request has got so far; it is prefilled again, and no output is reported again.

    A beam search that does not report its beams has got nothing before its end: it starts again.
    One that does goes on from the reported beams: another engine, or another batch, may compute
    probabilities that differ in their last bits, so a search that starts again may not pass by what
    was reported.

    Attributes:
        age_s: seconds since the request arrived first; requests with progress go ahead of new ones,
            the oldest first.
        solo_tokens: output tokens, beside those that it has, for which it runs with nothing beside
            it, since engines died that had it in their batch (probation); 0 for none.
        num_prompt_scored: tokens of the prompt whose log-probabilities were reported.
        finish_reasons: int8 `FinishReason` of each choice, NONE for those that go on; empty when
            nothing was reported.
        counts: int32 output tokens of each choice; 0 where it has ended, since nothing depends on
            them any more.
        tokens: int32 output tokens of all choices, one after the other.
        search: steps that were reported; None when there are none.
    """

    age_s: float = 0.0
    solo_tokens: int = 0
    num_prompt_scored: int = 0
    finish_reasons: IntColumn = field(default_factory=int8)
    counts: IntColumn = field(default_factory=int32)
    tokens: IntColumn = field(default_factory=int32)
    search: SearchSteps | None = None
