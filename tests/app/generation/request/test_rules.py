"""Rules that contradict each other are refused by the name of the one that leaves no token."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.generation.request.rules import check_rules, late_rule
from app.protocol.completion_request import CompletionRequest
from engine.errors import InvalidRequest
from engine.types import SamplingParams
from tests.app.api.server import completion_body
from tests.app.generation.prepared import completion

EOS, VOCAB = 2, 6


def fault(**rules: Any) -> str | None:
    try:
        check_rules(SamplingParams(max_tokens=4, **rules), (EOS,), VOCAB)
    except InvalidRequest as error:
        return error.param
    return None


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ({"allowed_token_ids": (EOS,)}, None),
        ({"allowed_token_ids": (EOS,), "min_tokens": 1}, "min_tokens"),
        ({"allowed_token_ids": (EOS,), "min_tokens": 1, "ignore_eos": True}, None),
        ({"allowed_token_ids": (5,), "min_tokens": 1, "stop_token_ids": (5,)}, "min_tokens"),
        ({"allowed_token_ids": (4, 5), "bad_words": ((4,), (5,))}, "bad_words"),
        ({"allowed_token_ids": (4, 5), "bad_words": ((4,), (5, 4))}, None),
        ({"allowed_token_ids": (4,), "logit_bias": ((4, -100.0),)}, "logit_bias"),
        ({"allowed_token_ids": (4,), "logit_bias": ((4, -99.0),)}, None),
        ({"bad_words": tuple((token,) for token in range(VOCAB))}, "bad_words"),
        (
            {"allowed_token_ids": (3, 4, EOS), "bad_words": ((3,),), "logit_bias": ((4, -100.0),)},
            None,
        ),
        (
            {
                "allowed_token_ids": (3, 4, EOS),
                "bad_words": ((3,),),
                "logit_bias": ((4, -100.0),),
                "min_tokens": 1,
            },
            "min_tokens",
        ),
    ],
)
def test_the_rule_that_leaves_no_token_is_named(rules: dict[str, Any], field: str | None) -> None:
    assert fault(**rules) == field


IDS = st.lists(st.integers(0, VOCAB - 1), max_size=VOCAB, unique=True).map(tuple)


@given(IDS, IDS, IDS, IDS, st.integers(0, 1), st.booleans())
@settings(max_examples=300)
def test_rules_are_refused_exactly_where_they_leave_no_token(
    allowed: tuple[int, ...],
    bad: tuple[int, ...],
    biased: tuple[int, ...],
    stops: tuple[int, ...],
    min_tokens: int,
    ignore_eos: bool,
) -> None:
    left = [
        token
        for token in (allowed or range(VOCAB))
        if token not in bad
        and token not in biased
        and not (min_tokens and (token in stops or (token == EOS and not ignore_eos)))
    ]
    field = fault(
        allowed_token_ids=allowed,
        bad_words=tuple((token,) for token in bad),
        logit_bias=tuple((token, -100.0) for token in biased),
        stop_token_ids=stops,
        min_tokens=min_tokens,
        ignore_eos=ignore_eos,
    )
    assert (field is None) == bool(left)


def test_half_way_the_rule_that_depends_on_the_text_is_at_fault() -> None:
    given = {"bad_words": ["x"], "allowed_token_ids": [5], "min_tokens": 1}
    fields = list(given)
    for kept in product([False, True], repeat=3):
        chosen = {f: given[f] for f, keep in zip(fields, kept, strict=True) if keep}
        request = CompletionRequest(**completion_body(**chosen))
        assert late_rule(request) == next(iter(chosen), None)


async def test_more_tokens_than_the_context_holds_cannot_be_wanted() -> None:
    with pytest.raises(InvalidRequest) as caught:
        await completion(min_tokens=513, max_tokens=513)
    assert caught.value.param == "min_tokens"


async def test_a_prompt_that_is_only_scored_follows_no_rules() -> None:
    await completion(echo=True, max_tokens=0, allowed_token_ids=[5], logit_bias={"5": -100})
