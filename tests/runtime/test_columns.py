import math
from array import array

from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.columns import (
    client_of,
    deltas,
    ended_requests,
    failure,
    idle_stats,
    part_by_client,
)
from engine.runtime.messages import OUTPUTS
from engine.types import (
    CLIENT_SHIFT,
    Capacity,
    FinishReason,
    StepOutput,
    float32,
    int32,
    int64,
)

STATS = idle_stats(Capacity(num_blocks=2, block_size=4, num_rows=1))
# (client, counter, token, finish reason, alternatives)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 9),
        st.sampled_from([0, 0, 1, 2]),
        st.lists(st.integers(0, 9), max_size=3),
    ),
    max_size=8,
)
Row = tuple[int, int, int, int, list[int]]


def output_of(rows: list[Row]) -> StepOutput:
    tops = [top for *_, top in rows]
    has_tops = any(tops)
    return StepOutput(
        step=4,
        request_ids=int64([(client << CLIENT_SHIFT) | count for client, count, *_ in rows]),
        choices=int32([0] * len(rows)),
        tokens=int32([token for _, _, token, _, _ in rows]),
        logprobs=float32([-float(token) for _, _, token, _, _ in rows]),
        finish_reasons=array("b", [reason for _, _, _, reason, _ in rows]),
        top_counts=int32([len(top) for top in tops] if has_tops else []),
        top_tokens=int32([token for top in tops for token in top]),
        top_logprobs=float32([-float(token) for top in tops for token in top]),
        stats=STATS,
    )


@given(ROWS)
def test_parting_gives_each_client_its_own_rows_in_order(rows: list[Row]) -> None:
    output = output_of(rows)
    parts = part_by_client(output, OUTPUTS.encode(output))
    assert set(parts) == {row[0] for row in rows}
    for client, part in parts.items():
        mine = output_of([row for row in rows if row[0] == client])
        told = dict(deltas([OUTPUTS.decode(part)]))
        assert told == dict(deltas([mine]))
        assert {client_of(request_id) for request_id in told} == {client}


@given(st.lists(ROWS, max_size=3))
def test_deltas_keep_every_token_of_several_outputs_in_order(steps: list[list[Row]]) -> None:
    told = list(deltas(output_of(rows) for rows in steps))
    assert len(dict(told)) == len(told)
    for request_id, delta in told:
        mine = [
            row for rows in steps for row in rows if (row[0] << CLIENT_SHIFT) | row[1] == request_id
        ]
        assert delta.tokens.tolist() == [token for _, _, token, _, _ in mine]
        assert delta.logprobs.tolist() == [-float(token) for _, _, token, _, _ in mine]
        assert [top.tolist() for top in delta.top_tokens] == [top for *_, top in mine if top]


def test_ended_requests_are_those_with_a_reason() -> None:
    rows: list[Row] = [(0, 1, 5, 0, []), (0, 2, 5, 1, []), (1, 1, 5, 2, [])]
    assert ended_requests(output_of(rows)) == [2, (1 << CLIENT_SHIFT) | 1]


def test_a_failure_ends_requests_without_a_token() -> None:
    told = dict(deltas([failure([3, 4], STATS)]))
    assert {delta.finish_reason for delta in told.values()} == {FinishReason.ERROR}
    assert not told[3].tokens
    assert math.isnan(failure([3], STATS).logprobs[0])
