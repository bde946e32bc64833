from typing import Any

import pytest

from app.protocol.parsing import parse_request
from app.protocol.tokenize_request import DetokenizeRequest, TokenizeRequest
from engine.errors import InvalidRequest

MESSAGES = [{"role": "user", "content": "Hi"}]


def test_a_text_may_be_empty_and_needs_no_model() -> None:
    request, _ = parse_request(TokenizeRequest, {"prompt": ""}, "reject")
    assert (request.prompt, request.messages, request.model) == ("", None, None)
    assert request.add_special_tokens is None
    request, _ = parse_request(TokenizeRequest, {"messages": MESSAGES}, "reject")
    assert request.add_generation_prompt


@pytest.mark.parametrize("fields", [{}, {"prompt": "a", "messages": MESSAGES}])
def test_exactly_one_of_text_and_messages_is_given(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(TokenizeRequest, fields, "reject")
    assert caught.value.param == "prompt"


def test_ids_are_whole_numbers() -> None:
    request, _ = parse_request(DetokenizeRequest, {"tokens": [1, 2]}, "reject")
    assert request.tokens == [1, 2]
    with pytest.raises(InvalidRequest, match=r"tokens\[1\]"):
        parse_request(DetokenizeRequest, {"tokens": [1, "2"]}, "reject")
