"""What a body of /v1/chat/completions means."""

from typing import Any

import pytest

from app.protocol.chat_request import ChatRequest
from app.protocol.parsing import parse_request
from engine.errors import InvalidRequest
from tests.app.api.server import chat_body


def parse(**fields: Any) -> ChatRequest:
    return parse_request(ChatRequest, chat_body(**fields), "reject")[0]


def fault(**fields: Any) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value.param


def test_text_parts_of_a_message_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]
    [message] = parse(messages=[{"role": "user", "content": parts}]).messages
    assert message.for_template() == {"role": "user", "content": "a b"}


def test_a_template_sees_only_what_a_message_has() -> None:
    given = {"role": "tool", "content": "x", "tool_call_id": "7", "name": None}
    [message] = parse(messages=[given]).messages
    assert message.for_template() == {"role": "tool", "content": "x", "tool_call_id": "7"}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0]"),
        (
            {"role": "assistant", "content": "x", "tool_calls": [{}]},
            "messages[0].tool_calls[0].function",
        ),
        (
            {"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]},
            "messages[0].tool_calls",
        ),
        ({"role": "user", "content": "x", "name": "a b"}, "messages[0].name"),
    ],
)
def test_other_messages_are_refused_by_name(message: dict[str, Any], param: str) -> None:
    assert fault(messages=[message]) == param


def test_a_conversation_has_a_message() -> None:
    assert fault(messages=[]) == "messages"


def test_the_newer_name_of_the_output_limit_wins() -> None:
    request = parse(max_tokens=5, max_completion_tokens=7)
    assert (request.output_limit, request.output_limit_name) == (7, "max_completion_tokens")
    request = parse(max_tokens=5)
    assert (request.output_limit, request.output_limit_name) == (5, "max_tokens")
    assert parse().output_limit is None


def test_alternatives_need_log_probabilities() -> None:
    assert parse(logprobs=True).num_logprobs == 0
    assert parse(logprobs=True, top_logprobs=3).num_logprobs == 3
    assert parse(top_logprobs=0).num_logprobs is None
    assert fault(top_logprobs=3) == "top_logprobs"
