"""Which positions of which rows a step computes."""

import numpy as np
import pytest

from engine.errors import InvariantViolated
from engine.worker.row_table import RowTable
from engine.worker.spans import (
    Spans,
    count_up,
    make_spans,
    prompt_tokens,
    sampled_spans,
    sampled_tokens,
)
from tests.engine.rows import NUM_POSITIONS, Chunk, admission, make_plan, make_table


def _table() -> RowTable:
    """Rows 0 to 2 with 5, 0 and 3 tokens; row 3 is free."""
    table = make_table()
    table.admit([admission(row, length=length) for row, length in enumerate((5, 0, 3))])
    return table


def _spans(rows: list[int], starts: list[int], ends: list[int]) -> Spans:
    columns = (np.array(column, np.int32) for column in (rows, starts, ends))
    return Spans(*columns)


def test_a_decode_computes_the_position_behind_its_length() -> None:
    spans = make_spans(make_plan([2, 0], [Chunk(1, 4, (7, 8, 9))]), _table())
    assert spans.rows.tolist() == [2, 0, 1]
    assert spans.starts.tolist() == [3, 5, 4]
    assert spans.ends.tolist() == [4, 6, 7]
    assert spans.counts.tolist() == [1, 1, 3]
    assert spans.bounds.tolist() == [0, 1, 2, 5]


@pytest.mark.parametrize(("row", "length"), [(1, 0), (3, -1), (0, NUM_POSITIONS)])
def test_rows_without_a_token_or_without_room_cannot_decode(row: int, length: int) -> None:
    table = _table()
    table.lengths[row] = length
    with pytest.raises(InvariantViolated, match=rf"\[{length}\] decode"):
        make_spans(make_plan([row]), table)


def test_a_row_decodes_up_to_its_last_position() -> None:
    table = _table()
    table.lengths[0] = NUM_POSITIONS - 1
    assert make_spans(make_plan([0]), table).ends.tolist() == [NUM_POSITIONS]
    table.lengths[0] = 1
    assert make_spans(make_plan([0]), table).ends.tolist() == [2]


def test_a_free_row_cannot_prefill() -> None:
    with pytest.raises(InvariantViolated, match=r"free rows among \[1, 3\]"):
        make_spans(make_plan([], [Chunk(1, 0, (7,)), Chunk(3, 0, (7,))]), _table())


def test_a_token_is_sampled_behind_the_last_one_of_each_sequence() -> None:
    """Row 2 decodes, row 0 goes on with its prompt, row 1 ends it and has row 3 as a sibling."""
    chunks = [Chunk(0, 5, (6, 6), samples=False), Chunk(1, 0, (7, 8, 9))]
    plan = make_plan([2], chunks, [(3, 1)])
    spans = make_spans(plan, _table())
    assert sampled_spans(plan, spans).tolist() == [0, 2, 2]
    sampled = sampled_tokens(plan, spans)
    assert sampled.rows.tolist() == list(plan.sampled_rows) == [2, 1, 3]
    assert sampled.positions.tolist() == [4, 3, 3]
    assert sampled.indices.tolist() == [0, 5, 5]


def test_a_sibling_needs_a_parent_that_samples() -> None:
    plan = make_plan([], [Chunk(1, 0, (7,), samples=False)], [(3, 1)])
    with pytest.raises(InvariantViolated, match=r"siblings of \{1\}"):
        sampled_tokens(plan, make_spans(plan, _table()))


def test_each_prompt_token_but_the_first_is_looked_up_behind_the_one_before() -> None:
    """Row 0 has a prompt of 6 tokens and goes on behind it, row 1 asks for nothing."""
    table = make_table()
    table.admit(
        [
            admission(0, prompt_len=6, length=1, prompt_logprobs=0),
            admission(1, prompt_len=3),
            admission(2, prompt_len=3, length=3, prompt_logprobs=2),
        ]
    )
    chunks = [Chunk(1, 0, (1, 2, 3)), Chunk(0, 2, (3, 4, 5, 6, 7, 8))]
    spans = make_spans(make_plan([2], chunks), table)
    prompt = prompt_tokens(spans, table.parameters)
    assert prompt.rows.tolist() == [0, 0, 0]
    assert prompt.positions.tolist() == [3, 4, 5]
    assert prompt.indices.tolist() == [4, 5, 6]


def test_without_a_wish_no_prompt_token_is_looked_up() -> None:
    table = _table()
    spans = make_spans(make_plan([], [Chunk(1, 0, (1, 2, 3))]), table)
    assert len(prompt_tokens(spans, table.parameters).rows) == 0


def test_a_split_span_becomes_single_tokens() -> None:
    spans = _spans([4, 5, 6], [2, 0, 7], [5, 3, 9]).split(np.array([True, False, True]))
    assert spans.rows.tolist() == [4, 4, 4, 5, 6, 6]
    assert spans.starts.tolist() == [2, 3, 4, 0, 7, 8]
    assert spans.ends.tolist() == [3, 4, 5, 3, 8, 9]


def test_counting_begins_anew_in_each_span() -> None:
    assert count_up(np.array([2, 0, 3], np.int32)).tolist() == [0, 1, 0, 1, 2]
