"""The rows of a `StepOutput`: split by client, made for failures."""

from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TypeVar

from engine.runtime.messages import OUTPUTS
from engine.types import (
    Capacity,
    FinishReason,
    FloatColumn,
    IntColumn,
    MemoryUsage,
    Refusal,
    RequestEvents,
    StepOutput,
    StepStats,
    float32,
    int8,
    int32,
    int64,
)

Client = TypeVar("Client", bound=Hashable)


def split_by_client(
    output: StepOutput, encoded: bytes, clients: Mapping[int, Client]
) -> dict[Client, bytes]:
    """Encode the rows of each client's requests.

    Args:
        encoded: the output itself, passed on without a copy when all rows are of one client.
        clients: by request id; rows of other requests are left out.
    """
    happened = output.events.requests if output.events is not None else int64()
    columns = (output.request_ids, output.beam_requests, happened)
    rows, beams, events = (_rows_of(column, clients) for column in columns)
    found = dict.fromkeys((*rows, *beams, *events))
    num_rows = sum(map(len, (*rows.values(), *beams.values(), *events.values())))
    is_of_one = num_rows == sum(map(len, columns))
    # only the replica may see what is of all tenants (pinned prefixes, marks) or of the operator
    is_of_replica = output.pinned is not None or output.prefix_marks is not None
    if len(found) == 1 and is_of_one and not is_of_replica and not output.failure:
        return dict.fromkeys(found, encoded)
    return {
        client: OUTPUTS.encode(
            replace(
                _select(output, rows.get(client, []), beams.get(client, [])),
                events=_select_events(output.events, events.get(client, [])),
            )
        )
        for client in found
    }


def ended_choices(output: StepOutput) -> Iterator[tuple[int, int]]:
    """(request id, choice) of the choices that have ended in this step."""
    rows = zip(output.request_ids, output.choices, output.finish_reasons, strict=True)
    return ((request_id, choice) for request_id, choice, reason in rows if reason)


def failure(
    choices: Iterable[tuple[int, int]],
    stats: StepStats,
    refusal: Refusal | None = None,
    *,
    reason: FinishReason = FinishReason.ERROR,
) -> StepOutput:
    """An output that ends choices, (request id, choice), and reports nothing else.

    Args:
        refusal: why, if the requests themselves are at fault.
    """
    pairs = list(choices)
    count = len(pairs)
    return StepOutput(
        step=-1,
        request_ids=int64([request_id for request_id, _ in pairs]),
        choices=int32([choice for _, choice in pairs]),
        tokens=int32([-1] * count),
        logprobs=float32([float("nan")] * count),
        finish_reasons=array("b", [reason] * count),
        stats=stats,
        refusals=tuple((request_id, refusal) for request_id, _ in pairs) if refusal else (),
    )


def idle_stats(capacity: Capacity) -> StepStats:
    """Counts before the first step."""
    slots = capacity.num_slots
    return StepStats(usage=MemoryUsage(total=slots, filled=0, internal=0, cached=0, free=slots))


def _rows_of(requests: IntColumn, clients: Mapping[int, Client]) -> dict[Client, list[int]]:
    rows: dict[Client, list[int]] = {}
    for row, request_id in enumerate(requests):
        client = clients.get(request_id)
        if client is not None:
            rows.setdefault(client, []).append(row)
    return rows


def pooled_vectors(output: StepOutput) -> Iterator[tuple[int, FloatColumn]]:
    """(request id, vector) of each request that has one."""
    num_vectors = len(output.pooled_requests)
    for index, request_id in enumerate(output.pooled_requests):
        width = len(output.pooled) // num_vectors
        yield request_id, output.pooled[index * width : (index + 1) * width]


def _select(output: StepOutput, rows: Sequence[int], beams: Sequence[int]) -> StepOutput:
    top_counts, top_tokens, top_logprobs = _select_tops(
        output.top_counts, output.top_tokens, output.top_logprobs, rows
    )
    beam_tops = _select_tops(
        output.beam_top_counts, output.beam_top_tokens, output.beam_top_logprobs, beams
    )
    request_ids = int64([output.request_ids[row] for row in rows])
    cached, preemptions, peaks = output.cached_tokens, output.preemptions, output.peak_blocks
    pooled = [(id_, vector) for id_, vector in pooled_vectors(output) if id_ in request_ids]
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
        peak_blocks=int32([peaks[row] for row in rows]) if peaks else int32(),
        refusals=tuple(refusal for refusal in output.refusals if refusal[0] in request_ids),
        beam_requests=int64([output.beam_requests[row] for row in beams]),
        beam_indices=int32([output.beam_indices[row] for row in beams]),
        beam_parents=int32([output.beam_parents[row] for row in beams]),
        beam_tokens=int32([output.beam_tokens[row] for row in beams]),
        beam_logprobs=float32([output.beam_logprobs[row] for row in beams]),
        beam_top_counts=beam_tops[0],
        beam_top_tokens=beam_tops[1],
        beam_top_logprobs=beam_tops[2],
        pooled_requests=int64([request_id for request_id, _ in pooled]),
        pooled=sum((vector for _, vector in pooled), start=float32()),
    )


def _select_events(events: RequestEvents | None, rows: Sequence[int]) -> RequestEvents | None:
    if events is None or not rows:
        return None
    return RequestEvents(
        requests=int64([events.requests[row] for row in rows]),
        kinds=int8([events.kinds[row] for row in rows]),
        times_us=int64([events.times_us[row] for row in rows]),
    )


def _select_tops(
    counts: IntColumn, tokens: IntColumn, logprobs: FloatColumn, rows: Sequence[int]
) -> tuple[IntColumn, IntColumn, FloatColumn]:
    selected = int32(), int32(), float32()
    if counts:
        ends = list(accumulate(counts))
        for row in rows:
            start = ends[row] - counts[row]
            selected[0].append(counts[row])
            selected[1].extend(tokens[start : ends[row]])
            selected[2].extend(logprobs[start : ends[row]])
    return selected
