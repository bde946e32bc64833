"""The rows of several `StepOutput`s, gathered into a delta for each choice of a request."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby

from engine.runtime.outputs import pooled_vectors
from engine.runtime.protocol import BeamStep, Delta
from engine.types import (
    BEAM_CHOICE,
    EventKind,
    FinishReason,
    FloatColumn,
    IntColumn,
    StepOutput,
    float32,
    int32,
)


def deltas(outputs: Sequence[StepOutput]) -> Iterator[tuple[int, Delta]]:
    """Gather the tokens of several outputs: one delta per request and choice, with its id."""
    if all(map(_has_only_tokens, outputs)):
        return _token_deltas(outputs)
    return _all_deltas(outputs)


def events_of(outputs: Iterable[StepOutput]) -> Iterator[tuple[int, EventKind, int]]:
    """(request id, what has happened, microseconds since the epoch), in order of time."""
    for output in outputs:
        if (events := output.events) is not None:
            for request_id, kind, time_us in zip(
                events.requests, events.kinds, events.times_us, strict=True
            ):
                yield request_id, EventKind(kind), time_us


@dataclass(slots=True)
class _Gathered:
    """What becomes a `Delta` once all outputs are read."""

    tokens: IntColumn = field(default_factory=int32)
    logprobs: FloatColumn = field(default_factory=float32)
    top_tokens: list[IntColumn] = field(default_factory=list)
    top_logprobs: list[FloatColumn] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.NONE
    num_cached: int = 0
    num_preemptions: int = 0
    peak_blocks: int = 0
    beam_steps: list[BeamStep] = field(default_factory=list)
    pooled: FloatColumn = field(default_factory=float32)


def _has_only_tokens(output: StepOutput) -> bool:
    """Whether an output has neither alternatives nor what comes once a request, as most have."""
    others = (
        output.top_counts,
        output.cached_tokens,
        output.preemptions,
        output.peak_blocks,
        output.beam_requests,
        output.pooled_requests,
    )
    return not any(others)


def _token_deltas(outputs: Sequence[StepOutput]) -> Iterator[tuple[int, Delta]]:
    """What `_all_deltas` yields of outputs that have only tokens, for a third of the CPU time."""
    found: dict[tuple[int, int], tuple[list[int], list[float]]] = {}
    ends: dict[tuple[int, int], FinishReason] = {}
    for output in outputs:
        keys = zip(output.request_ids, output.choices, strict=True)
        values = zip(output.tokens, output.logprobs, output.finish_reasons, strict=True)
        for key, (token, logprob, reason) in zip(keys, values, strict=True):
            columns = found.get(key)
            if columns is None:
                columns = found[key] = ([], [])
            if token >= 0:
                columns[0].append(token)
                columns[1].append(logprob)
            if reason:
                ends[key] = FinishReason(reason)
    for key, (tokens, logprobs) in found.items():
        yield (
            key[0],
            Delta(
                choice=key[1],
                tokens=int32(tokens),
                logprobs=float32(logprobs),
                finish_reason=ends.get(key, FinishReason.NONE),
            ),
        )


def _all_deltas(outputs: Iterable[StepOutput]) -> Iterator[tuple[int, Delta]]:
    gathered: dict[tuple[int, int], _Gathered] = {}
    for output in outputs:
        _gather_beams(output, gathered)
        _gather_pooled(output, gathered)
        _gather(output, gathered)
    for (request_id, choice), found in gathered.items():
        yield (
            request_id,
            Delta(
                choice=choice,
                tokens=found.tokens,
                logprobs=found.logprobs,
                top_tokens=tuple(found.top_tokens),
                top_logprobs=tuple(found.top_logprobs),
                finish_reason=found.finish_reason,
                num_cached=found.num_cached,
                num_preemptions=found.num_preemptions,
                peak_blocks=found.peak_blocks,
                beam_steps=tuple(found.beam_steps),
                pooled=found.pooled,
            ),
        )


def _gather_beams(output: StepOutput, gathered: dict[tuple[int, int], _Gathered]) -> None:
    start = 0
    top_ends = [0, *accumulate(output.beam_top_counts)]
    for request_id, run in groupby(output.beam_requests):
        end = start + sum(1 for _ in run)
        tops = slice(top_ends[start], top_ends[end]) if output.beam_top_counts else slice(0)
        step = BeamStep(
            indices=output.beam_indices[start:end],
            parents=output.beam_parents[start:end],
            tokens=output.beam_tokens[start:end],
            logprobs=output.beam_logprobs[start:end],
            top_counts=output.beam_top_counts[start:end],
            top_tokens=output.beam_top_tokens[tops],
            top_logprobs=output.beam_top_logprobs[tops],
        )
        gathered.setdefault((request_id, BEAM_CHOICE), _Gathered()).beam_steps.append(step)
        start = end


def _gather_pooled(output: StepOutput, gathered: dict[tuple[int, int], _Gathered]) -> None:
    for request_id, vector in pooled_vectors(output):
        gathered.setdefault((request_id, 0), _Gathered()).pooled = vector


def _gather(output: StepOutput, gathered: dict[tuple[int, int], _Gathered]) -> None:
    ends = list(accumulate(output.top_counts))
    keys = zip(output.request_ids, output.choices, strict=True)
    for row, (key, token) in enumerate(zip(keys, output.tokens, strict=True)):
        found = gathered.get(key)
        if found is None:
            found = gathered[key] = _Gathered()
        if output.finish_reasons[row]:
            found.finish_reason = FinishReason(output.finish_reasons[row])
        _count(output, row, found)
        if token < 0:
            continue
        found.tokens.append(token)
        found.logprobs.append(output.logprobs[row])
        if ends and output.top_counts[row]:
            start = ends[row] - output.top_counts[row]
            found.top_tokens.append(output.top_tokens[start : ends[row]])
            found.top_logprobs.append(output.top_logprobs[start : ends[row]])


def _count(output: StepOutput, row: int, found: _Gathered) -> None:
    if output.cached_tokens:
        found.num_cached += output.cached_tokens[row]
    if output.preemptions:
        found.num_preemptions += output.preemptions[row]
    if output.peak_blocks:
        found.peak_blocks = max(found.peak_blocks, output.peak_blocks[row])
