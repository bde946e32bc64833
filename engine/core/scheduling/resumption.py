"""Brings a new group to where the group of a lost engine was: as if it had been preempted since.

The state is that of a group that was preempted by recomputation: it waits, and prompt and output
are prefilled again when it enters the batch.
"""

import math
from itertools import accumulate

from engine.core.sequence_group import SequenceGroup
from engine.errors import InvalidRequest
from engine.types import FinishReason, IntColumn, Progress, int32

_NONE, _ABORT = FinishReason.NONE, FinishReason.ABORT


def resume(group: SequenceGroup, progress: Progress) -> None:
    """Take up the progress of a group's request.

    Args:
        group: a new one, see `make_group`.

    Raises:
        InvalidRequest: if no engine can have come to this with this request.
    """
    _check(group, progress)
    group.resume_prompt(progress.num_prompt_scored)
    if group.beam is not None:
        if progress.search is not None:
            beams = group.beam.replay(progress.search)
            group.resume_beams({index: int32(tokens) for index, tokens in beams.items()})
    elif progress.finish_reasons:
        _resume_choices(group, progress)


def _check(group: SequenceGroup, progress: Progress) -> None:
    sampling = group.request.sampling
    num_choices = len(progress.finish_reasons)
    _require(group.request.pin is None, "a prefix is not pinned in parts")
    _require(0 <= progress.age_s < math.inf, f"its age is {progress.age_s} s")
    _require(
        0 <= progress.num_prompt_scored <= group.num_prompt_logprobs,
        f"{progress.num_prompt_scored} tokens of the prompt are scored, and "
        f"{group.num_prompt_logprobs} were to be",
    )
    _require(num_choices in (0, sampling.n), f"it has {num_choices} choices, not {sampling.n}")
    _require(len(progress.counts) == num_choices, "not every choice has a count of tokens")
    _require(min(progress.counts, default=0) >= 0, "a count of tokens is negative")
    _require(sum(progress.counts) == len(progress.tokens), "counts and tokens do not fit together")
    _require(min(progress.tokens, default=0) >= 0, "a token is negative")
    if group.beam is not None:
        _require(not progress.tokens, "beams have tokens by their steps only")
    _require(progress.search is None or sampling.report_beams, "no beams were to be reported")


def _resume_choices(group: SequenceGroup, progress: Progress) -> None:
    """Make the sequences of all choices, or, before the first token, only the first one."""
    _require(set(progress.finish_reasons) <= set(FinishReason), "an end is of no known kind")
    reasons = [FinishReason(reason) for reason in progress.finish_reasons]
    outputs = _cut(progress.tokens, progress.counts)
    choices = list(zip(outputs, reasons, strict=True))
    lengths = [len(output) for output, reason in choices if reason is _NONE]
    _require(bool(lengths), "every choice has ended")
    _require(
        not any(output for output, reason in choices if reason is not _NONE),
        "an ended choice has tokens",
    )
    _require(
        max(lengths) < group.max_tokens,
        f"a choice that goes on has {max(lengths)} tokens of at most {group.max_tokens}",
    )
    if any(lengths):
        # siblings are forked when the prefill has ended, and sample their first token at once
        _require(all(lengths), "some choices have begun and others have not")
        group.resume_choices(choices)
        return
    # nothing is forked yet: who was given up ends in place of the first token
    ended = {choice for choice, reason in enumerate(reasons) if reason is not _NONE}
    _require(all(reasons[choice] is _ABORT for choice in ended), "a choice has ended unbegun")
    for choice in ended:
        group.defer_abort(choice)


def _cut(tokens: IntColumn, counts: IntColumn) -> list[IntColumn]:
    ends = list(accumulate(counts))
    return [tokens[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise InvalidRequest(f"the request cannot go on: {reason}", param="progress")
