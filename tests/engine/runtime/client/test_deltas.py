"""Every token of several outputs comes in the delta of its choice, in order."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.client.deltas import _all_deltas, deltas
from engine.types import int32
from tests.engine.runtime.test_outputs import ROWS, Row, by_choice, output_of


@given(st.lists(ROWS, max_size=3))
def test_deltas_keep_every_token_of_several_outputs_in_order(steps: list[list[Row]]) -> None:
    for key, delta in by_choice(*map(output_of, steps)).items():
        mine = [row for rows in steps for row in rows if row[:2] == key]
        assert delta.tokens.tolist() == [token for _, _, token, _, _ in mine]
        assert delta.logprobs.tolist() == [-float(token) for _, _, token, _, _ in mine]
        assert [top.tolist() for top in delta.top_tokens] == [top for *_, top in mine if top]


@given(st.lists(ROWS, max_size=2))
def test_outputs_with_tokens_only_are_gathered_as_all_others(steps: list[list[Row]]) -> None:
    outputs = [output_of([(*row[:4], []) for row in rows]) for rows in steps]
    assert list(deltas(outputs)) == list(_all_deltas(outputs))
    ended = [replace(output, tokens=int32([-1] * len(output.tokens))) for output in outputs]
    assert list(deltas(ended)) == list(_all_deltas(ended))
