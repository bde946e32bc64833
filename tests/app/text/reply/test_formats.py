"""Recorded replies of every format: the same parts, however the text is cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.text.reply.formats import FORMATS, ReplyFormat, ReplyStyle, format_of, thinks
from tests.app.text.reply.replies import Recorded, described, parsed, recorded

REPLIES = recorded()
QWEN = '{% if tools %}<tools></tools> within <tool_call></tool_call>: {"name": <name>} {% endif %}'
LLAMA = '<|start_header_id|>{% if tools %}{"name": name, "parameters": {}}{% endif %}'


@pytest.mark.parametrize("reply", REPLIES)
def test_a_reply_has_the_same_parts_at_every_split(reply: Recorded) -> None:
    whole = parsed(reply.style, [reply.text])
    assert described(whole) == reply.parts
    assert parsed(reply.style, list(reply.text)) == whole
    for cut in range(len(reply.text) + 1):
        assert parsed(reply.style, [reply.text[:cut], reply.text[cut:]]) == whole


def test_every_format_is_recorded() -> None:
    assert {reply.format for reply in REPLIES} == FORMATS.keys()


@settings(max_examples=100)
@given(
    format=st.sampled_from(sorted(FORMATS)),
    thinking=st.sampled_from([(False, False), (True, False), (True, True)]),
    pieces=st.lists(
        st.sampled_from(
            [
                *'{}[]()"\\,:;=\n xé1',
                *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"),
                *("<think>", "</think>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>"),
                *("analysis", "final", " to=functions.now", '{"name": "now"', '"arguments"'),
                *("now", "get_weather", "null", "true", "-1.5e3", "<|python_start|>"),
            ]
        ),
        max_size=30,
    ),
)
def test_no_text_of_a_model_is_an_error(
    format: str, thinking: tuple[bool, bool], pieces: list[str]
) -> None:
    style = ReplyFormat(
        calls=FORMATS[format],
        tools=frozenset(("now", "get_weather")),
        thinks=thinking[0],
        is_thinking=thinking[1],
    )
    assert parsed(style, pieces) == parsed(style, ["".join(pieces)])


@pytest.mark.parametrize(
    "reply", [reply for reply in REPLIES if any("call" in p for p in reply.parts)]
)
def test_only_the_first_call_is_kept_where_one_is_wanted(reply: Recorded) -> None:
    style = ReplyFormat(
        calls=FORMATS[reply.format],
        tools=reply.style.tools,
        max_calls=1,
        thinks=reply.thinks,
        is_thinking=reply.is_thinking,
    )
    calls = [part for part in described(parsed(style, list(reply.text))) if "call" in part]
    assert calls == [part for part in reply.parts if "call" in part][:1]


def test_long_arguments_come_while_they_are_written() -> None:
    for reply in REPLIES:
        if (
            "call" in str(reply.parts)
            and "write_file" in str(reply.parts)
            and len(reply.text) > 300
        ):
            parser = reply.style.parser()
            parts = [part for char in reply.text for part in parser.push(char)]
            assert len(parts) > 100
            assert parts[0].name == "write_file"


def test_long_arguments_that_break_end_where_they_break() -> None:
    arguments = '{"path": "' + "x" * 200 + '"'
    text = f'<tool_call>{{"name": "write_file", "arguments": {arguments} oh</tool_call>'
    style = ReplyFormat(calls=FORMATS["hermes"], tools=frozenset({"write_file"}))
    call, rest = parsed(style, list(text))
    assert (call.text.rstrip(), rest.text) == (arguments, "oh</tool_call>")


def test_reasoning_alone_is_split_off_without_tools() -> None:
    style = ReplyFormat(thinks=True)
    text = "<think>a</think> <tool_call>{}"
    assert described(parsed(style, list(text))) == [{"reasoning": "a"}, {"text": "<tool_call>{}"}]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (QWEN, "hermes"),
        (LLAMA, "llama3_json"),
        ("{% if tools %}[func_name1(params_name1=params_value1)]{% endif %}", "pythonic"),
        ("[AVAILABLE_TOOLS] {{ tools }} [TOOL_CALLS]", "mistral"),
        ("<|channel|>analysis<|message|>", "harmony"),
        (f"{QWEN}<function=name><parameter=key>", "smollm2"),
        ("<|im_start|>", "smollm2"),
        ("", "smollm2"),
    ],
)
def test_a_template_says_the_format(template: str, name: str) -> None:
    assert format_of(template) == name
    assert ReplyStyle.of(template).calls is FORMATS[name]
    assert ReplyStyle.of(template, calls="mistral").name == "mistral"


def test_a_template_says_whether_the_model_thinks() -> None:
    assert thinks("{{ content.split('</think>')[-1] }}")
    assert not thinks(QWEN)
    assert ReplyStyle.of(QWEN, reasoning="think").thinks
    assert not ReplyStyle.of("</think>", reasoning="none").thinks
    assert not ReplyStyle.of("</think>", calls="harmony").thinks


def test_ids_of_calls_differ_and_fit_the_template() -> None:
    ids = [format.make_id() for format in FORMATS.values() for _ in range(20)]
    assert len(set(ids)) == len(ids)
    assert len(FORMATS["mistral"].make_id()) == 9
