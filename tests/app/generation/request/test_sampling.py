"""The engine's sampling parameters that belong to the fields of a request."""

import math
from typing import Any

import pytest

from app.generation.request.sampling import (
    is_ranked,
    sampling_params,
    scoring_params,
    with_defaults,
)
from app.protocol.completion_request import CompletionRequest
from engine.types import SamplingParams
from tests.app.api.server import completion_body


def request(**fields: Any) -> CompletionRequest:
    return CompletionRequest(**completion_body(**fields))


def params(max_tokens: int = 8, **fields: Any) -> SamplingParams:
    return sampling_params(request(**fields), max_tokens, ())


@pytest.mark.parametrize("fields", [{}, {"seed": -1}])
def test_a_request_without_a_seed_gets_one_of_its_own(fields: dict[str, Any]) -> None:
    assert len({params(**fields).seed for _ in range(4)}) == 4


@pytest.mark.parametrize("seed", [0, 7, -(2**63), 2**63 - 1])
def test_a_seed_is_kept(seed: int) -> None:
    assert params(seed=seed).seed == seed


DEFAULTS = {"temperature": 0.0, "top_k": 3, "repetition_penalty": 1.1}


def test_the_model_s_defaults_hold_where_a_request_names_nothing() -> None:
    sampling = sampling_params(with_defaults(request(), DEFAULTS), 8, ())
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.0, 3, 1.0)
    assert sampling.repetition_penalty == 1.1
    # those of the schema count as named too
    named = request(temperature=1.0, top_k=0, repetition_penalty=1.0, n=2)
    sampling = sampling_params(with_defaults(named, DEFAULTS), 8, ())
    assert (sampling.temperature, sampling.top_k, sampling.n) == (1.0, 0, 2)
    assert not sampling.changes_logits


def test_greedy_by_default_is_greedy_throughout() -> None:
    ranked = with_defaults(request(n=2, best_of=4), DEFAULTS)
    assert not is_ranked(ranked)
    assert sampling_params(ranked, 8, ()).n == 1


def test_a_beam_search_takes_no_defaults() -> None:
    search = request(use_beam_search=True, n=2)
    assert with_defaults(search, DEFAULTS) is search


def test_one_sequence_is_made_where_all_would_be_equal() -> None:
    assert params(n=2, best_of=3, temperature=0).n == 1
    assert params(n=2, best_of=3, temperature=0.5).n == 3


def test_negative_zero_is_greedy() -> None:
    assert math.copysign(1, params(temperature=-0.0).temperature) == 1


@pytest.mark.parametrize(("given", "top_k"), [(-1, 0), (0, 0), (1, 1), (7, 7)])
def test_a_top_k_of_minus_one_is_off(given: int, top_k: int) -> None:
    assert params(top_k=given).top_k == top_k


def test_no_more_tokens_are_needed_than_may_be_made() -> None:
    assert params(4, min_tokens=6).min_tokens == 4
    assert params(8, min_tokens=6).min_tokens == 6
    assert params(4, min_tokens=6, use_beam_search=True).min_tokens == 4


def test_ids_are_passed_on_once_in_their_order() -> None:
    sampling = params(stop_token_ids=[9, 4, 9], allowed_token_ids=[5, 0, 5])
    assert (sampling.stop_token_ids, sampling.allowed_token_ids) == ((9, 4), (5, 0))
    assert params(stop_token_ids=[9, 9], use_beam_search=True).stop_token_ids == (9,)


def test_biases_are_those_of_their_ids() -> None:
    assert params(logit_bias={"3": 1.5, "12": -100}).logit_bias == ((3, 1.5), (12, -100.0))


def test_bad_words_are_passed_on() -> None:
    assert sampling_params(request(), 8, ((1, 2), (3,))).bad_words == ((1, 2), (3,))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"n": 2, "best_of": 3}, True),
        ({"n": 2, "best_of": 2}, False),
        ({"n": 2}, False),
        ({"n": 2, "best_of": 3, "temperature": 0}, False),
        ({"n": 2, "best_of": 3, "use_beam_search": True}, False),
    ],
)
def test_sequences_are_ranked_where_more_are_drawn_than_returned(
    fields: dict[str, Any], expected: bool
) -> None:
    assert is_ranked(request(**fields)) is expected


def test_ranking_needs_log_probabilities() -> None:
    assert params(n=1, best_of=3).num_logprobs == 0
    assert params(n=1, best_of=3, logprobs=2).num_logprobs == 2
    assert params(n=3, best_of=3).num_logprobs is None


def test_a_beam_search_returns_the_best_of_its_width() -> None:
    sampling = params(n=2, best_of=5, use_beam_search=True, length_penalty=0.5)
    assert (sampling.n, sampling.beam_width, sampling.length_penalty) == (2, 5, 0.5)


def test_only_a_stream_follows_the_beams() -> None:
    assert params(use_beam_search=True, stream=True).report_beams
    assert not params(use_beam_search=True).report_beams


def test_a_prompt_is_scored_by_making_the_engine_say_its_last_token() -> None:
    sampling = scoring_params(5, 2, deterministic=True)
    assert (sampling.max_tokens, sampling.allowed_token_ids, sampling.ignore_eos) == (1, (5,), True)
    assert (sampling.prompt_logprobs, sampling.num_logprobs) == (2, 2)
    assert sampling.deterministic
    assert sampling.temperature == 0
