"""What a body of /v1/completions means."""

from typing import Any

import pytest

from app.limits import MAX_SEQUENCES
from app.protocol.completion_request import (
    DEFAULT_MAX_TOKENS,
    CompletionRequest,
)
from app.protocol.parsing import parse_request
from engine.errors import InvalidRequest
from tests.app.api.server import completion_body


def parse(**fields: Any) -> CompletionRequest:
    return parse_request(CompletionRequest, completion_body(**fields), "reject")[0]


def fault(**fields: Any) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value.param


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ("a", [("prompt", "a")]),
        ([5, 6], [("prompt", [5, 6])]),
        (["a", "b"], [("prompt[0]", "a"), ("prompt[1]", "b")]),
        ([[5], [6, 7]], [("prompt[0]", [5]), ("prompt[1]", [6, 7])]),
    ],
)
def test_a_prompt_is_text_or_ids_or_a_list_of_either(prompt: Any, named: list[Any]) -> None:
    request = parse(prompt=prompt)
    assert request.named_prompts() == named
    assert request.num_prompts == len(named)


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", 5], [5, "a"], [["a"]], 5])
def test_other_prompts_are_refused(prompt: Any) -> None:
    name = fault(prompt=prompt)
    assert name is not None
    assert name.startswith("prompt")


def test_output_has_a_default_and_may_be_nothing_beside_an_echo() -> None:
    assert parse().output_limit == DEFAULT_MAX_TOKENS
    assert parse(max_tokens=0, echo=True).output_limit == 0
    assert fault(max_tokens=0) == "max_tokens"
    assert fault(min_tokens=DEFAULT_MAX_TOKENS + 1) == "min_tokens"


def test_as_many_candidates_are_made_as_returned_unless_more_are_wanted() -> None:
    assert parse(n=3).num_candidates == 3
    assert parse(n=3, best_of=5).num_candidates == 5
    assert fault(n=3, best_of=2) == "best_of"


def test_candidates_cannot_be_ranked_in_a_stream_but_by_a_search() -> None:
    assert fault(best_of=2, stream=True) == "best_of"
    assert parse(best_of=2, stream=True, use_beam_search=True).num_candidates == 2
    assert parse(n=2, best_of=2, stream=True).num_candidates == 2


def test_the_sequences_of_all_prompts_have_a_limit() -> None:
    half = MAX_SEQUENCES // 2
    assert parse(prompt=["a", "b"], n=half).n == half
    assert fault(prompt=["a", "b", "c"], n=half) == "n"
    assert fault(prompt=["a", "b", "c"], best_of=half) == "best_of"


def test_zero_alternatives_are_log_probabilities() -> None:
    assert parse(logprobs=0).num_logprobs == 0
    assert parse().num_logprobs is None
