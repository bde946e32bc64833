"""The rows of a `StepOutput`: parted by owner, turned into deltas, made for failures."""

from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import TypeVar

from engine.runtime.messages import OUTPUTS
from engine.runtime.protocol import BeamStep, Delta
from engine.types import (
    BEAM_CHOICE,
    Capacity,
    FinishReason,
    FloatColumn,
    IntColumn,
    MemoryUsage,
    Refusal,
    StepOutput,
    StepStats,
    float32,
    int32,
    int64,
)

Owner = TypeVar("Owner", bound=Hashable)


def part_by_owner(
    output: StepOutput, encoded: bytes, owners: Mapping[int, Owner]
) -> dict[Owner, bytes]:
    """Encode each owner's rows.

    Args:
        encoded: the output itself, passed on when all rows are of one owner.
        owners: by request id; rows of others are left out.
    """
    rows, beams = _rows_of(output.request_ids, owners), _rows_of(output.beam_requests, owners)
    found = dict.fromkeys((*rows, *beams))
    num_owned = sum(map(len, (*rows.values(), *beams.values())))
    is_of_one = num_owned == len(output.request_ids) + len(output.beam_requests)
    # what is pinned is nobody's but the replica's
    if len(found) == 1 and is_of_one and output.pinned is None:
        return dict.fromkeys(found, encoded)
    return {
        owner: OUTPUTS.encode(_select(output, rows.get(owner, []), beams.get(owner, [])))
        for owner in found
    }


def ended_choices(output: StepOutput) -> Iterator[tuple[int, int]]:
    """(request id, choice) of those that have ended in this step."""
    rows = zip(output.request_ids, output.choices, output.finish_reasons, strict=True)
    return ((request_id, choice) for request_id, choice, reason in rows if reason)


def deltas(outputs: Iterable[StepOutput]) -> Iterator[tuple[int, Delta]]:
    """Gather the tokens of several outputs: one delta per request and choice, with its id."""
    gathered: dict[tuple[int, int], _Gathered] = {}
    for output in outputs:
        _gather_beams(output, gathered)
        _gather(output, gathered)
    for (request_id, choice), news in gathered.items():
        yield (
            request_id,
            Delta(
                choice=choice,
                tokens=news.tokens,
                logprobs=news.logprobs,
                top_tokens=tuple(news.top_tokens),
                top_logprobs=tuple(news.top_logprobs),
                finish_reason=news.finish_reason,
                num_cached=news.num_cached,
                num_preemptions=news.num_preemptions,
                beam_steps=tuple(news.beam_steps),
            ),
        )


def failure(
    choices: Iterable[tuple[int, int]], stats: StepStats, refusal: Refusal | None = None
) -> StepOutput:
    """An output that ends choices, (request id, choice), with ERROR and has no other news.

    Args:
        refusal: why, if that is the requests' own fault.
    """
    pairs = list(choices)
    count = len(pairs)
    return StepOutput(
        step=-1,
        request_ids=int64([request_id for request_id, _ in pairs]),
        choices=int32([choice for _, choice in pairs]),
        tokens=int32([-1] * count),
        logprobs=float32([float("nan")] * count),
        finish_reasons=array("b", [FinishReason.ERROR] * count),
        top_counts=int32(),
        top_tokens=int32(),
        top_logprobs=float32(),
        stats=stats,
        refusals=tuple((request_id, refusal) for request_id, _ in pairs) if refusal else (),
    )


def idle_stats(capacity: Capacity) -> StepStats:
    """Counts before the first step."""
    slots = capacity.num_slots
    return StepStats(usage=MemoryUsage(total=slots, filled=0, internal=0, cached=0, free=slots))


@dataclass(slots=True)
class _Gathered:
    tokens: IntColumn = field(default_factory=int32)
    logprobs: FloatColumn = field(default_factory=float32)
    top_tokens: list[IntColumn] = field(default_factory=list)
    top_logprobs: list[FloatColumn] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.NONE
    num_cached: int = 0
    num_preemptions: int = 0
    beam_steps: list[BeamStep] = field(default_factory=list)


def _rows_of(requests: IntColumn, owners: Mapping[int, Owner]) -> dict[Owner, list[int]]:
    rows: dict[Owner, list[int]] = {}
    for row, request_id in enumerate(requests):
        owner = owners.get(request_id)
        if owner is not None:
            rows.setdefault(owner, []).append(row)
    return rows


def _gather_beams(output: StepOutput, gathered: dict[tuple[int, int], _Gathered]) -> None:
    start = 0
    for request_id, run in groupby(output.beam_requests):
        end = start + sum(1 for _ in run)
        step = BeamStep(
            indices=output.beam_indices[start:end],
            parents=output.beam_parents[start:end],
            tokens=output.beam_tokens[start:end],
            logprobs=output.beam_logprobs[start:end],
        )
        gathered.setdefault((request_id, BEAM_CHOICE), _Gathered()).beam_steps.append(step)
        start = end


def _gather(output: StepOutput, gathered: dict[tuple[int, int], _Gathered]) -> None:
    ends = list(accumulate(output.top_counts))
    keys = zip(output.request_ids, output.choices, strict=True)
    for row, (key, token) in enumerate(zip(keys, output.tokens, strict=True)):
        news = gathered.setdefault(key, _Gathered())
        if output.finish_reasons[row]:
            news.finish_reason = FinishReason(output.finish_reasons[row])
        if output.cached_tokens:
            news.num_cached += output.cached_tokens[row]
        if output.preemptions:
            news.num_preemptions += output.preemptions[row]
        if token < 0:
            continue
        news.tokens.append(token)
        news.logprobs.append(output.logprobs[row])
        if ends and output.top_counts[row]:
            start = ends[row] - output.top_counts[row]
            news.top_tokens.append(output.top_tokens[start : ends[row]])
            news.top_logprobs.append(output.top_logprobs[start : ends[row]])


def _select(output: StepOutput, rows: Sequence[int], beams: Sequence[int]) -> StepOutput:
    top_counts, top_tokens, top_logprobs = int32(), int32(), float32()
    if output.top_counts:
        ends = list(accumulate(output.top_counts))
        for row in rows:
            start = ends[row] - output.top_counts[row]
            top_counts.append(output.top_counts[row])
            top_tokens += output.top_tokens[start : ends[row]]
            top_logprobs += output.top_logprobs[start : ends[row]]
    request_ids = int64([output.request_ids[row] for row in rows])
    cached, preemptions = output.cached_tokens, output.preemptions
    return StepOutput(
        step=output.step,
        request_ids=request_ids,
        choices=int32([output.choices[row] for row in rows]),
        tokens=int32([output.tokens[row] for row in rows]),
        logprobs=float32([output.logprobs[row] for row in rows]),
        finish_reasons=array("b", [output.finish_reasons[row] for row in rows]),
        top_counts=top_counts,
        top_tokens=top_tokens,
        top_logprobs=top_logprobs,
        stats=output.stats,
        cached_tokens=int32([cached[row] for row in rows]) if cached else int32(),
        preemptions=int32([preemptions[row] for row in rows]) if preemptions else int32(),
        refusals=tuple(entry for entry in output.refusals if entry[0] in request_ids),
        beam_requests=int64([output.beam_requests[row] for row in beams]),
        beam_indices=int32([output.beam_indices[row] for row in beams]),
        beam_parents=int32([output.beam_parents[row] for row in beams]),
        beam_tokens=int32([output.beam_tokens[row] for row in beams]),
        beam_logprobs=float32([output.beam_logprobs[row] for row in beams]),
    )
