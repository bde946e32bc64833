"""Which positions of which rows a step computes, and which tokens follow them; all on the host.

A span is a stretch of positions of one row that a step computes: the next position of a row that
decodes, or a chunk of a prompt. A token is sampled behind the last position of each decode and of
each chunk that ends its prompt.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvariantViolated
from engine.types import StepPlan
from engine.worker.row_table import RowParameters, RowTable
from engine.worker.staging import Int32Array


@dataclass(frozen=True, slots=True)
class Spans:
    """Positions [starts, ends) of rows, [R] int32 each; decodes first, then prefill chunks."""

    rows: Int32Array
    starts: Int32Array
    ends: Int32Array

    @property
    def counts(self) -> Int32Array:
        """Tokens of each span."""
        return self.ends - self.starts

    @property
    def bounds(self) -> Int32Array:
        """Span r has tokens [bounds[r], bounds[r + 1]) of the batch."""
        bounds = np.zeros(len(self.rows) + 1, np.int32)
        self.counts.cumsum(out=bounds[1:])
        return bounds

    def split(self, is_split: NDArray[np.bool_]) -> "Spans":
        """Spans of which some [R] are cut into single tokens, in the same order."""
        pieces = np.where(is_split, self.counts, 1)
        starts = self.starts.repeat(pieces) + count_up(pieces)
        ends = np.where(is_split.repeat(pieces), starts + 1, self.ends.repeat(pieces))
        return Spans(self.rows.repeat(pieces), starts, ends)


@dataclass(frozen=True, slots=True)
class NextTokens:
    """N tokens, each of which follows one token of the batch; host int32.

    Attributes:
        rows, positions: [N] row of each token, and its position in the sequence.
        indices: [N] token of the batch that it follows, whose logits decide on it.
    """

    rows: Int32Array
    positions: Int32Array
    indices: Int32Array


_EMPTY = np.zeros(0, np.int32)
NO_TOKENS = NextTokens(_EMPTY, _EMPTY, _EMPTY)


def count_up(counts: Int32Array) -> Int32Array:
    """Concatenate [0, count) of each of the counts."""
    firsts = counts.cumsum(dtype=np.int32) - counts
    return np.arange(counts.sum(), dtype=np.int32) - firsts.repeat(counts)


def make_spans(plan: StepPlan, table: RowTable) -> Spans:
    """The spans of a plan.

    Raises:
        InvariantViolated: if a row is free, has no token to go on from, or no room to go on.
    """
    decode_rows = np.asarray(plan.decode_rows)
    prefill_rows = np.asarray(plan.prefill_rows)
    prefill_starts = np.asarray(plan.prefill_starts)
    lengths = decoding_lengths(plan, table)
    if (table.lengths[prefill_rows] < 0).any():
        raise InvariantViolated(
            f"step {plan.step}: free rows among {prefill_rows.tolist()} prefill"
        )
    return Spans(
        np.concatenate((decode_rows, prefill_rows)),
        np.concatenate((lengths, prefill_starts)),
        np.concatenate((lengths + 1, prefill_starts + np.asarray(plan.prefill_counts))),
    )


def decoding_lengths(plan: StepPlan, table: RowTable) -> Int32Array:
    """Tokens of each row that decodes, before the step.

    Raises:
        InvariantViolated: if a row is free, has no token to go on from, or no room to go on.
    """
    lengths: Int32Array = table.lengths[np.asarray(plan.decode_rows)]
    if (lengths < 1).any() or (lengths >= table.num_positions).any():
        raise InvariantViolated(f"step {plan.step}: rows of lengths {lengths.tolist()} decode")
    return lengths


def sampled_tokens(plan: StepPlan, spans: Spans) -> NextTokens:
    """The tokens that will be sampled, in the order of `StepPlan.sampled_rows`.

    Raises:
        InvariantViolated: if the parent of a sibling samples nothing.
    """
    parents = sampled_spans(plan, spans)
    rows = spans.rows[parents]
    rows[len(rows) - len(plan.sibling_rows) :] = plan.sibling_rows
    return NextTokens(rows, spans.ends[parents], spans.bounds[1:][parents] - 1)


def prompt_tokens(spans: Spans, parameters: RowParameters) -> NextTokens:
    """The prompt tokens whose log-probabilities the rows asked for."""
    is_asked = parameters.num_prompt_logprobs[spans.rows] >= 0
    if not is_asked.any():
        return NO_TOKENS
    ends = np.minimum(spans.ends, parameters.prompt_lens[spans.rows] - 1)
    counts = np.where(is_asked, (ends - spans.starts).clip(0), 0)
    indices = count_up(counts)
    return NextTokens(
        rows=spans.rows.repeat(counts),
        positions=spans.starts.repeat(counts) + indices + 1,
        indices=spans.bounds[:-1].repeat(counts) + indices,
    )


def sampled_spans(plan: StepPlan, spans: Spans) -> NDArray[np.int64]:
    """Index of the span that each row of `StepPlan.sampled_rows` takes its logits from.

    Raises:
        InvariantViolated: if the parent of a sibling samples nothing.
    """
    num_decodes = len(plan.decode_rows)
    ended = np.flatnonzero(np.asarray(plan.prefill_samples)) + num_decodes
    own = np.concatenate((np.arange(num_decodes), ended))
    if not plan.sibling_rows:
        return own
    index_of = {int(spans.rows[index]): index for index in ended}
    missing = set(plan.sibling_parents) - index_of.keys()
    if missing:
        raise InvariantViolated(f"step {plan.step}: siblings of {missing}, which sample nothing")
    return np.concatenate((own, [index_of[row] for row in plan.sibling_parents]))
