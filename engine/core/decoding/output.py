"""Fills the columns of a StepOutput: one item per new token or ended sequence.

Columns of what few items have are left empty until one has it, and filled up with zeros then.
"""

from collections.abc import Iterable, Mapping

from engine.core.decoding.beam_search import Candidates, Child
from engine.core.decoding.group_reports import GroupReports
from engine.core.sequence_group import SequenceGroup
from engine.types import FinishReason, FloatColumn, IntColumn, StepOutput, StepResult

NO_LOGPROB = float("nan")


def add_token(
    output: StepOutput,
    group: SequenceGroup,
    choice: int,
    token: int,
    logprob: float,
    reason: FinishReason,
) -> None:
    """Add one token of a choice."""
    if group.reports.has_news:
        _add_reports(output, group.reports)
    output.request_ids.append(group.request.request_id)
    output.choices.append(choice)
    output.tokens.append(token)
    output.logprobs.append(logprob)
    output.finish_reasons.append(reason)


def _add_reports(output: StepOutput, reports: GroupReports) -> None:
    """Add what is reported beside the next token."""
    num_items = len(output.tokens)
    if reports.num_cached_tokens > 0 and not reports.is_cache_reported:
        _fill_up(output.cached_tokens, num_items)
        output.cached_tokens.append(reports.report_cached_tokens())
    if reports.num_preemptions:
        _fill_up(output.preemptions, num_items)
        output.preemptions.append(reports.report_preemptions())
    if not reports.is_peak_reported:
        _fill_up(output.peak_blocks, num_items)
        output.peak_blocks.append(reports.report_peak_blocks())
    reports.end_news()


def add_alternatives(output: StepOutput, tokens: Iterable[int], logprobs: Iterable[float]) -> None:
    """Add the most likely tokens in the place of the last one, most likely first."""
    num_before = len(output.top_tokens)
    output.top_tokens.extend(tokens)
    output.top_logprobs.extend(logprobs)
    _fill_up(output.top_counts, len(output.tokens) - 1)
    output.top_counts.append(len(output.top_tokens) - num_before)


def add_end(output: StepOutput, group: SequenceGroup, choice: int, reason: FinishReason) -> None:
    """Add the end of a choice without a token."""
    add_token(output, group, choice, -1, NO_LOGPROB, reason)


def pooled_vector(result: StepResult, item: int) -> FloatColumn:
    """The vector of an item of a result, whose row pools."""
    index, width = result.pooled_items.index(item), len(result.pooled) // len(result.pooled_items)
    return result.pooled[index * width : (index + 1) * width]


def add_pooled(output: StepOutput, group: SequenceGroup, vector: FloatColumn) -> None:
    """Add the vector of a request."""
    output.pooled_requests.append(group.request.request_id)
    output.pooled.extend(vector)


def add_beams(
    output: StepOutput,
    group: SequenceGroup,
    open_: Mapping[int, Child],
    ended: list[tuple[int, Child]],
    alternatives: Mapping[int, Candidates],
) -> None:
    """Add one step of a search that goes on: its beams by index, and what it has ended.

    Args:
        alternatives: by index of the parent, the most likely tokens in the place of the new ones.
    """
    for index, child in (*ended, *open_.items()):
        if tops := alternatives[child.parent]:
            _fill_up(output.beam_top_counts, len(output.beam_requests))
            output.beam_top_counts.append(len(tops))
            output.beam_top_tokens.extend(token for token, _ in tops)
            output.beam_top_logprobs.extend(logprob for _, logprob in tops)
        output.beam_requests.append(group.request.request_id)
        output.beam_indices.append(index)
        output.beam_parents.append(child.parent)
        output.beam_tokens.append(child.token)
        output.beam_logprobs.append(child.logprob)


def fill_up(output: StepOutput) -> None:
    """Append zeros to the optional columns in use until they are as long as the others."""
    for column in (
        output.cached_tokens,
        output.preemptions,
        output.peak_blocks,
        output.top_counts,
    ):
        if column:
            _fill_up(column, len(output.tokens))
    if output.beam_top_counts:
        _fill_up(output.beam_top_counts, len(output.beam_requests))


def _fill_up(column: IntColumn, num_items: int) -> None:
    column.extend([0] * (num_items - len(column)))
