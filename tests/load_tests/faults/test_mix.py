import pytest
from pydantic import TypeAdapter

from app.protocol.completion_request import CompletionRequest
from load_tests.faults.mix import MixedRequest, draw_cases, with_stop


def test_equal_seeds_draw_equal_cases_of_every_kind() -> None:
    cases = draw_cases(32, seed=7, vocab_size=1000, output_len=16, fields={})
    assert cases == draw_cases(32, seed=7, vocab_size=1000, output_len=16, fields={})
    assert cases != draw_cases(32, seed=8, vocab_size=1000, output_len=16, fields={})
    kinds = {case.kind for case in cases}
    assert kinds == {
        "greedy", "seeded", "n=3", "best_of", "beams", "logprobs", "penalties", "stop string",
    }  # fmt: skip
    assert {case.is_streamed for case in cases if case.kind == "beams"} == {True, False}


@pytest.mark.parametrize("case", draw_cases(16, seed=0, vocab_size=1000, output_len=16, fields={}))
def test_the_api_takes_every_body_and_its_draws_are_fixed(case: MixedRequest) -> None:
    request = TypeAdapter(CompletionRequest).validate_python(case.body)
    assert request.use_beam_search or request.seed is not None
    assert all(256 <= token < 1000 for token in case.body["prompt"])


def test_a_stop_string_lies_inside_the_text() -> None:
    case = with_stop(MixedRequest(kind="stop string", body={"max_tokens": 8}), "abcdefghij")
    assert case.body == {"max_tokens": 8, "stop": ["fghi"]}
