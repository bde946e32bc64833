"""Every part of a body: what asks for nothing is accepted, the rest refused in plain words."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.limits import MAX_FIELDS
from app.protocol.chat.messages import Message, TextPart
from app.protocol.chat_request import ChatRequest
from app.protocol.completion_request import CompletionRequest
from app.protocol.generation_fields import StreamOptions
from app.protocol.parsing import parse_request
from app.protocol.prefix_request import PrefixRequest
from app.protocol.strict import Strict
from app.protocol.tokenize_request import DetokenizeRequest, TokenizeRequest
from engine.errors import InvalidRequest

HI: dict[str, Any] = {"role": "user", "content": "Hi"}
PART: dict[str, Any] = {"type": "text", "text": "Hi"}
GOOD: dict[type[Strict], dict[str, Any]] = {
    ChatRequest: {"messages": [HI]},
    CompletionRequest: {"prompt": "Hi"},
    DetokenizeRequest: {"tokens": [5]},
    Message: HI,
    PrefixRequest: {"name": "a", "prompt": "Hi"},
    StreamOptions: {},
    TextPart: PART,
    TokenizeRequest: {"prompt": "Hi"},
}
UNSUPPORTED = [(model, name) for model in GOOD for name in model.unsupported]
# what the validation library or a class of ours would say
FOREIGN = re.compile(
    r"Input|Field|[Vv]alid (dictionary|string|list)|should|instance|Extra|pydantic|"
    + "|".join(model.__name__ for model in GOOD)
)


def fault(model: type[Strict], body: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(model, body, "reject")
    return caught.value


def test_fields_are_ignored_or_unsupported_but_not_both() -> None:
    for model in GOOD:
        assert set(model.ignored) <= set(model.model_fields)
        assert not set(model.model_fields) & set(model.unsupported)


@pytest.mark.parametrize(("model", "name"), UNSUPPORTED)
def test_every_unsupported_field_is_refused_by_name_unless_it_asks_for_nothing(
    model: type[Strict], name: str
) -> None:
    for value in (None, "", [], {}, False, {"a": None}, *model.unsupported[name]):
        parse_request(model, {**GOOD[model], name: value}, "reject")
    for value in ("else", 7, [1], {"a": 1}, True):
        error = fault(model, {**GOOD[model], name: value})
        assert (error.code, error.param) == ("unsupported_parameter", name)


@pytest.mark.parametrize("model", GOOD)
def test_null_is_as_good_as_nothing_in_every_field(model: type[Strict]) -> None:
    nulls = dict.fromkeys([*model.model_fields, *model.unsupported, "novel"])
    plain, _ = parse_request(model, GOOD[model], "reject")
    assert parse_request(model, nulls | GOOD[model], "reject") == (plain, [])


NESTED = {
    "messages": [{**HI, "mood": 1}, {**HI, "mood": 2, "content": [{**PART, "font": "x"}]}],
    "stream": True,
    "stream_options": {"novel": 3},
    "a\nb": 1,
    "user": "u",
}


def test_fields_without_effect_are_reported_at_every_depth() -> None:
    options = {"stream": True, "stream_options": {"include_obfuscation": False}}
    body = {**GOOD[ChatRequest], **options, "user": "u", "metadata": None}
    _, ignored = parse_request(ChatRequest, body, "reject")
    assert ignored == ["user", "stream_options.include_obfuscation"]


def test_unknown_fields_are_ignored_and_reported_at_every_depth() -> None:
    request, ignored = parse_request(ChatRequest, NESTED, "ignore")
    assert [message.for_template()["content"] for message in request.messages] == ["Hi", "Hi"]
    assert ignored[0] == "user"
    assert set(ignored[1:]) == {
        "messages.mood",
        "messages.content.font",
        "stream_options.novel",
    }
    assert len(ignored) == 4


def test_not_more_unknown_fields_are_reported_than_a_header_holds() -> None:
    half = MAX_FIELDS // 2 + 1
    many = [{**HI, **{f"f{i}": 1 for i in range(start, start + half)}} for start in (0, half)]
    body = {"messages": many}
    assert len(parse_request(ChatRequest, body, "ignore")[1]) == MAX_FIELDS


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{**HI, "mood": 1}]}, "messages[0].mood"),
        (
            {"messages": [HI, {**HI, "content": [{**PART, "font": 1}]}]},
            "messages[1].content[0].font",
        ),
        ({**NESTED, "messages": [HI]}, None),
        (
            {"messages": [HI], "stream": True, "stream_options": {"novel": 3}},
            "stream_options.novel",
        ),
    ],
)
def test_unknown_fields_are_refused_by_name_at_every_depth(
    body: dict[str, Any], param: str | None
) -> None:
    error = fault(ChatRequest, body)
    assert (error.code, error.param) == ("unknown_parameter", param)


WORDS: list[tuple[type[Strict], dict[str, Any], str]] = [
    (ChatRequest, {}, "messages: it must be given"),
    (ChatRequest, {"messages": [7]}, "messages[0]: it must be an object"),
    (
        ChatRequest,
        {"messages": [{"role": "user", "content": None}]},
        "messages[0].content: it must be text or a list of text parts",
    ),
    (
        ChatRequest,
        {"messages": [{"role": "user", "content": {}}]},
        "messages[0].content: it must be text or a list of text parts",
    ),
    (
        ChatRequest,
        {"messages": [{"role": "user", "content": [7]}]},
        "messages[0].content[0]: it must be an object",
    ),
    (
        ChatRequest,
        {"messages": [HI], "stream_options": 7},
        "stream_options: it must be an object",
    ),
    (
        CompletionRequest,
        {"prompt": 7},
        "prompt: it must be text, a list of token ids, or a list of either",
    ),
    (CompletionRequest, {"prompt": "a", "stop": 7}, "stop: it must be text or a list of texts"),
    (CompletionRequest, {"prompt": "a", "n": 0}, "n: it must be at least 1"),
    (PrefixRequest, {"name": "a", "prompt": 7}, "prompt: it must be text or a list of token ids"),
    (PrefixRequest, {"name": "a", "prompt": ["x"]}, "prompt[0]: it must be a whole number"),
]


@pytest.mark.parametrize(("model", "body", "message"), WORDS)
def test_an_error_says_what_would_be_right(
    model: type[Strict], body: dict[str, Any], message: str
) -> None:
    assert str(fault(model, body)) == message


SCALARS = st.sampled_from([None, True, 0, -1, 7, 1.5, 1e300, 2**63, "", "x", "a\nb", "x" * 300])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "b"]), inner, max_size=3
        )
    ),
    max_leaves=4,
)


@pytest.mark.parametrize("model", GOOD)
@given(st.data())
@settings(max_examples=150)
def test_no_error_speaks_the_validation_library_s_words(
    model: type[Strict], data: st.DataObject
) -> None:
    names = [*model.model_fields, *model.unsupported, "novel"]
    body = {**GOOD[model], data.draw(st.sampled_from(names)): data.draw(VALUES)}
    if model is ChatRequest and data.draw(st.booleans()):
        body["messages"] = [{**HI, data.draw(st.sampled_from([*Message.model_fields])): 7}]
    message = ""
    try:
        parse_request(model, body, "reject")
    except InvalidRequest as error:
        message = str(error)
    assert not FOREIGN.search(message)
    assert "its value is not valid" not in message
