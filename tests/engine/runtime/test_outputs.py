import math
from array import array
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.client.deltas import deltas, events_of
from engine.runtime.messages import OUTPUTS
from engine.runtime.outputs import (
    ended_choices,
    failure,
    idle_stats,
    split_by_client,
)
from engine.runtime.protocol import Delta
from engine.types import (
    BEAM_CHOICE,
    PROMPT_CHOICE,
    Capacity,
    EventKind,
    FinishReason,
    Refusal,
    RequestEvents,
    StepOutput,
    float32,
    int8,
    int32,
    int64,
)
from tests.fakes.engine_handle import tokens_output

STATS = idle_stats(Capacity(num_blocks=2, block_size=4, num_rows=1))
# (request, choice, token, finish reason, alternatives)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.integers(PROMPT_CHOICE, 2),
        st.integers(0, 9),
        st.sampled_from([0, 0, 1, 2]),
        st.lists(st.integers(0, 9), max_size=3),
    ),
    max_size=8,
)
# requests 0 and 1 have no client any more
CLIENTS = {2: "a", 3: "b", 4: "a", 5: "c"}
Row = tuple[int, int, int, int, list[int]]


def output_of(rows: list[Row]) -> StepOutput:
    tops = [top for *_, top in rows]
    has_tops = any(tops)
    return StepOutput(
        step=4,
        request_ids=int64([request_id for request_id, *_ in rows]),
        choices=int32([choice for _, choice, *_ in rows]),
        tokens=int32([token for _, _, token, _, _ in rows]),
        logprobs=float32([-float(token) for _, _, token, _, _ in rows]),
        finish_reasons=array("b", [reason for _, _, _, reason, _ in rows]),
        top_counts=int32([len(top) for top in tops] if has_tops else []),
        top_tokens=int32([token for top in tops for token in top]),
        top_logprobs=float32([-float(token) for top in tops for token in top]),
        stats=STATS,
    )


def by_choice(*outputs: StepOutput) -> dict[tuple[int, int], Delta]:
    reported = [((request_id, delta.choice), delta) for request_id, delta in deltas(outputs)]
    assert len(dict(reported)) == len(reported)
    return dict(reported)


def test_vectors_go_to_the_clients_of_their_requests() -> None:
    ended = int(FinishReason.LENGTH)
    rows: list[Row] = [(request_id, 0, -1, ended, []) for request_id in (0, 3, 4, 5)]
    pooled = float32([0, 0.5, 4, 4.5, 3, 3.5])
    output = replace(output_of(rows), pooled_requests=int64([0, 4, 3]), pooled=pooled)
    split = split_by_client(output, OUTPUTS.encode(output), CLIENTS)
    vectors = {
        client: {
            key: delta.pooled.tolist() for key, delta in by_choice(OUTPUTS.decode(data)).items()
        }
        for client, data in split.items()
    }
    assert vectors == {"a": {(4, 0): [4, 4.5]}, "b": {(3, 0): [3, 3.5]}, "c": {(5, 0): []}}


@given(ROWS)
def test_splitting_gives_each_client_its_own_rows_in_order(rows: list[Row]) -> None:
    output = output_of(rows)
    parts = split_by_client(output, OUTPUTS.encode(output), CLIENTS)
    assert set(parts) == {CLIENTS[row[0]] for row in rows if row[0] in CLIENTS}
    for client, part in parts.items():
        mine = output_of([row for row in rows if CLIENTS.get(row[0]) == client])
        assert by_choice(OUTPUTS.decode(part)) == by_choice(mine)


def test_an_output_of_one_client_is_passed_on_as_it_is() -> None:
    output = output_of([(2, 0, 7, 0, []), (4, 1, 8, 0, [])])
    assert split_by_client(output, b"as it came", CLIENTS) == {"a": b"as it came"}


def test_clients_get_what_concerns_their_requests_and_nothing_of_pins() -> None:
    rows: list[Row] = [(2, 0, 7, 0, []), (3, 0, 8, 0, []), (2, 1, 9, 0, [])]
    why = Refusal(code="invalid_value", message="no")
    output = replace(
        output_of(rows),
        cached_tokens=int32([0, 5, 3]),
        preemptions=int32([1, 0, 2]),
        refusals=((3, why),),
        pinned=(),
    )
    parts = {o: OUTPUTS.decode(p) for o, p in split_by_client(output, b"", CLIENTS).items()}
    assert list(parts["a"].cached_tokens) == [0, 3]
    assert list(parts["a"].preemptions) == [1, 2]
    assert [delta.num_preemptions for delta in by_choice(output).values()] == [1, 0, 2]
    assert (parts["a"].refusals, parts["b"].refusals) == ((), ((3, why),))
    assert parts["a"].pinned is parts["b"].pinned is None
    assert {key: delta.num_cached for key, delta in by_choice(output).items()} == {
        (2, 0): 0,
        (3, 0): 5,
        (2, 1): 3,
    }
    single = replace(output_of(rows[:1]), pinned=())
    assert OUTPUTS.decode(split_by_client(single, b"", CLIENTS)["a"]).pinned is None


def test_no_client_gets_the_marks_of_the_cache() -> None:
    output = replace(output_of([(2, 0, 7, 0, [])]), prefix_marks=b"of all tenants")
    encoded = OUTPUTS.encode(output)
    [part] = split_by_client(output, encoded, CLIENTS).values()
    assert OUTPUTS.decode(part).prefix_marks is None
    assert b"of all tenants" not in part


def test_ended_choices_are_those_with_a_reason() -> None:
    rows: list[Row] = [(1, 0, 5, 0, []), (1, 1, 5, 1, []), (3, 0, 5, 2, [])]
    assert list(ended_choices(output_of(rows))) == [(1, 1), (3, 0)]


def test_a_failure_ends_choices_without_a_token() -> None:
    reported = by_choice(failure([(3, 0), (3, 1), (4, 0)], STATS))
    assert set(reported) == {(3, 0), (3, 1), (4, 0)}
    assert {delta.finish_reason for delta in reported.values()} == {FinishReason.ERROR}
    assert not reported[3, 1].tokens
    assert math.isnan(failure([(3, 0)], STATS).logprobs[0])


def test_steps_of_searches_go_to_their_clients_and_stay_apart() -> None:
    reported = replace(
        tokens_output([(1, 5, FinishReason.NONE)]),
        beam_requests=int64([2, 2, 3]),
        beam_indices=int32([0, -1, 0]),
        beam_parents=int32([0, 1, 2]),
        beam_tokens=int32([7, 8, 9]),
        beam_logprobs=float32([-1.0, -2.0, -3.0]),
    )
    encoded = OUTPUTS.encode(reported)
    whole = split_by_client(reported, encoded, dict.fromkeys((1, 2, 3), "a"))
    assert whole == {"a": encoded}
    parts = split_by_client(reported, encoded, {2: "a", 3: "b"})
    steps = {}
    for part in parts.values():
        output = OUTPUTS.decode(part)
        for request_id, delta in deltas([output, output]):
            assert delta.choice == BEAM_CHOICE
            steps[request_id] = [
                list(zip(s.indices, s.parents, s.tokens, s.logprobs, strict=True))
                for s in delta.beam_steps
            ]
    assert steps == {2: [[(0, 0, 7, -1.0), (-1, 1, 8, -2.0)]] * 2, 3: [[(0, 2, 9, -3.0)]] * 2}


def test_alternatives_of_beams_go_with_their_rows() -> None:
    reported = replace(
        tokens_output([]),
        beam_requests=int64([2, 2, 3, 3]),
        beam_indices=int32([0, 1, 0, 1]),
        beam_parents=int32([0] * 4),
        beam_tokens=int32([7, 8, 9, 6]),
        beam_logprobs=float32([-1.0] * 4),
        beam_top_counts=int32([0, 2, 1, 0]),
        beam_top_tokens=int32([8, 5, 9]),
        beam_top_logprobs=float32([-1.0, -2.0, -1.5]),
    )
    parts = split_by_client(reported, b"", {2: "a", 3: "b"})
    found: dict[int, list[tuple[list[int], list[int], list[float]]]] = {}
    for part in (reported, *map(OUTPUTS.decode, parts.values())):
        for request_id, delta in deltas([part]):
            steps = [
                (list(s.top_counts), list(s.top_tokens), list(s.top_logprobs))
                for s in delta.beam_steps
            ]
            assert found.setdefault(request_id, steps) == steps
    assert found == {
        2: [([0, 2], [8, 5], [-1.0, -2.0])],
        3: [([1, 0], [9], [-1.5])],
    }


def events(*pairs: tuple[int, EventKind]) -> RequestEvents:
    return RequestEvents(
        requests=int64([request_id for request_id, _ in pairs]),
        kinds=int8([kind for _, kind in pairs]),
        times_us=int64(list(range(len(pairs)))),
    )


def test_clients_get_the_events_of_their_own_requests() -> None:
    happened = events(
        (1, EventKind.QUEUED), (2, EventKind.QUEUED), (1, EventKind.ADMITTED), (9, EventKind.ENDED)
    )
    output = replace(tokens_output([(2, 5, FinishReason.NONE)]), events=happened)
    parts = split_by_client(output, b"", {1: "a", 2: "b"})
    found = {client: list(events_of([OUTPUTS.decode(part)])) for client, part in parts.items()}
    # of a request without tokens of its own, and of one of no client
    assert found == {
        "a": [(1, EventKind.QUEUED, 0), (1, EventKind.ADMITTED, 2)],
        "b": [(2, EventKind.QUEUED, 1)],
    }
    assert list(OUTPUTS.decode(parts["a"]).tokens) == []


def test_an_output_with_events_of_one_client_is_passed_on_as_it_is() -> None:
    happened = events((1, EventKind.QUEUED))
    output = replace(tokens_output([(1, 5, FinishReason.NONE)]), events=happened)
    encoded = OUTPUTS.encode(output)
    assert split_by_client(output, encoded, {1: "a"}) == {"a": encoded}
    other = replace(output, events=events((1, EventKind.QUEUED), (2, EventKind.QUEUED)))
    [part] = split_by_client(other, OUTPUTS.encode(other), {1: "a"}).values()
    assert [request_id for request_id, *_ in events_of([OUTPUTS.decode(part)])] == [1]
