"""Reads the steps of a beam search that another engine has reported."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from engine.errors import InvalidRequest
from engine.types import SearchSteps


class StepRow(NamedTuple):
    """One beam after a step, or what has ended in it.

    Attributes:
        beam: see `StepOutput.beam_indices`.
        alternatives: (token, logprob) of the most likely tokens in its token's place.
    """

    beam: int
    parent: int
    token: int
    logprob: float
    alternatives: Sequence[tuple[int, float]]


def rows_of(steps: SearchSteps) -> Iterator[list[StepRow]]:
    """Yield the rows of each step.

    Raises:
        InvalidRequest: if the columns do not fit together.
    """
    num_rows = len(steps.indices)
    top_counts = steps.top_counts or [0] * num_rows
    _check(steps, num_rows, len(top_counts))
    top_ends = list(accumulate(top_counts))
    row = 0
    for count in steps.counts:
        rows = []
        for place in range(row, row + count):
            tops = slice(top_ends[place] - top_counts[place], top_ends[place])
            pairs = zip(steps.top_tokens[tops], steps.top_logprobs[tops], strict=True)
            rows.append(
                StepRow(
                    steps.indices[place],
                    steps.parents[place],
                    steps.tokens[place],
                    steps.logprobs[place],
                    list(pairs),
                )
            )
        row += count
        yield rows


def _check(steps: SearchSteps, num_rows: int, num_top_counts: int) -> None:
    lengths = {
        num_rows,
        num_top_counts,
        len(steps.parents),
        len(steps.tokens),
        len(steps.logprobs),
    }
    num_tops = sum(steps.top_counts)
    fits = (
        len(lengths) == 1
        and sum(steps.counts) == num_rows
        and len(steps.top_tokens) == len(steps.top_logprobs) == num_tops
        and min(steps.counts, default=0) >= 0
        and min(steps.top_counts, default=0) >= 0
    )
    if not fits:
        raise InvalidRequest("the columns of a search do not fit together", param="progress")
