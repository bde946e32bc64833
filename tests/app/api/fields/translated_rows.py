"""Fields of the routes that are translations of a chat: /v1/responses and /v1/messages."""

from typing import Any

from tests.app.api.fields.rows import (
    MISSING,
    TOO_LONG,
    UNKNOWN,
    UNSUPPORTED,
    VOCAB,
    Row,
    Wrong,
    flag,
    idle,
    number,
    other,
    text,
    unknown,
    unsupported,
    whole,
)
from tests.app.api.fields.shared_rows import MODEL, SAMPLING, STOP

USER = {"role": "user", "content": "x"}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
_FUNCTION = {"type": "function", "name": "f", "parameters": _SCHEMA}
_CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
_OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
_TOOL = {"name": "f", "input_schema": _SCHEMA}
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def _part(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "x", **fields}]}]


def _format(**fields: Any) -> dict[str, Any]:
    return {"format": {"type": "json_schema", **fields}}


RESPONSES: list[Row] = [
    *SAMPLING,
    MODEL,
    STOP,
    other("input",
          ("x", [USER], [USER, {"role": "assistant", "content": "y"}, USER], _part(),
           [{"type": "message", "role": "developer", "content": "x"}], [USER, _CALL, _OUTPUT],
           [USER, {"type": "reasoning", "id": "r", "summary": []}, _CALL, _OUTPUT],
           [{**USER, "id": "i", "status": "completed"}], _part(type="output_text", annotations=[])),
          ([], {}, 5, True, Wrong(["x"], "[0]"), Wrong([None], "[0]"),
           Wrong([{"type": "item_reference", "id": "a"}], "[0]"),
           Wrong([{"content": "x"}], "[0].role", MISSING),
           Wrong([{"role": "god", "content": "x"}], "[0].role"),
           Wrong([{"role": "user"}], "[0].content", MISSING),
           Wrong([{"role": "user", "content": 7}], "[0].content"),
           Wrong([{**USER, "mood": 1}], "[0].mood", UNKNOWN),
           Wrong(_part(text=5), "[0].content[0].text"),
           Wrong(_part(type="input_image"), "[0].content[0]", UNSUPPORTED),
           Wrong([{**_CALL, "arguments": {}}], "[0].arguments"),
           Wrong([{**_CALL, "name": "a b"}], "[0].name"),
           Wrong([{"type": "function_call", "name": "f", "arguments": ""}], "[0].call_id", MISSING),
           [USER] * 2049, Wrong("a " * 600, code=TOO_LONG)),
          is_required=True),
    text("instructions", ("", "Be kind."), (Wrong("a " * 600, code=TOO_LONG, param="input"),)),
    whole("max_output_tokens", (1, 16, 512), (0, -1, Wrong(513, code=TOO_LONG),
                                             Wrong(10**400, code=TOO_LONG))),
    other("tools", ([], [_FUNCTION], [{"type": "function", "name": "f", "parameters": None}]),
          ({}, "f", 5, True, Wrong(["f"], "[0]"),
           Wrong([{"type": "function"}], "[0].name", MISSING),
           Wrong([{"type": "web_search"}], "[0].type"), Wrong([{"name": "f"}], "[0].type", MISSING),
           Wrong([{**_FUNCTION, "name": "a b"}], "[0].name"),
           Wrong([{**_FUNCTION, "strict": 1}], "[0].strict"),
           Wrong([{**_FUNCTION, "parameters": []}], "[0].parameters"),
           Wrong([{**_FUNCTION, "mood": 1}], "[0].mood", UNKNOWN),
           [_FUNCTION] * 2, [_FUNCTION] * 129)),
    other("tool_choice", ("none", "auto"), ("required", "", "sometimes", 5, True, [])),
    other("tool_choice", ("none", "auto", "required", {"type": "function", "name": "f"}),
          (Wrong({}, ".type", MISSING), Wrong({"type": "function"}, ".name", MISSING),
           Wrong({"type": "function", "name": "g"}, ".name"),
           Wrong({"type": "file_search", "name": "f"}, ".type")),
          beside={"tools": [_FUNCTION]}),
    other("text",
          ({}, {"format": {"type": "text"}}, {"format": {"type": "json_object"}},
           _format(name="a", schema=_SCHEMA, strict=True), {"verbosity": "low"}),
          ([], "x", 5, True, Wrong({"verbosity": "much"}, ".verbosity"),
           Wrong({"format": "json"}, ".format"), Wrong({"format": {"type": "xml"}}, ".format.type"),
           Wrong(_format(), ".format.name", MISSING), Wrong(_format(name="a b"), ".format.name"),
           Wrong(_format(name="a", schema={"not": {}}), ".format.schema"),
           Wrong({"mood": 1}, ".mood", UNKNOWN))),
    other("reasoning", ({}, *({"effort": effort} for effort in _EFFORTS), {"summary": "auto"}),
          ([], "x", 5, True, Wrong({"effort": "much"}, ".effort"), Wrong({"effort": 1}, ".effort"),
           Wrong({"mood": 1}, ".mood", UNKNOWN))),
    other("include", ([], ["message.output_text.logprobs"], ["reasoning.encrypted_content"]),
          ("x", {}, 5, True, Wrong(["x"], "[0]"), Wrong([5], "[0]"))),
    whole("top_logprobs", (0, 1, 20), (-1, 21, 10**400)),
    text("truncation", ("auto", "disabled"), ("", "left")),
    other("store", (False,), (1, "true", [], Wrong(True, code=UNSUPPORTED))),
    text("previous_response_id", ("",), (Wrong("resp_1", code=UNSUPPORTED),)),
    other("conversation", (False, "", {}, []), tuple(
        Wrong(value, code=UNSUPPORTED) for value in ("conv_1", {"id": "c"}, 5))),
    idle("metadata", ({}, {"a": "b"}), (Wrong({"a": 1}, ".a"), "x", [])),
    idle("user", ("u",), kind="text"),
    idle("safety_identifier", ("s",), kind="text"),
    idle("prompt_cache_key", ("s",), kind="text"),
    idle("service_tier", ("auto",), kind="text"),
    idle("stream_options", ({}, {"include_obfuscation": True}),
         (5, [], Wrong({"include_usage": True}, ".include_usage", UNKNOWN))),
    flag("stream"),
    flag("parallel_tool_calls", beside={"tools": [_FUNCTION]}),
    flag("include_reasoning"),
    other("chat_template_kwargs", ({}, {"enable_thinking": False}),
          ([], "x", 5, True, {"messages": []})),
    text("cache_salt", ("s", "x" * 128), ("", "x" * 129)),
    text("session_id", ("t", "x" * 128), ("", "x" * 129)),
    text("request_id", ("r-1",), ("", "a b", "x" * 129)),
    unsupported("background", True, 1),
    unsupported("context_management", [{"type": "compaction"}]),
    unsupported("early_stopping", True, "never"),
    unsupported("length_penalty", 0.5, True, good=(1,)),
    unsupported("max_tool_calls", 1),
    unsupported("moderation", True),
    unsupported("n", 2, True, good=(1,)),
    unsupported("prompt", {"id": "p"}, "x"),
    unsupported("prompt_cache_retention", "24h"),
    unsupported("prompt_cache_options", {"mode": "explicit"}),
    unsupported("use_beam_search", True, 1),
    unknown("messages", [USER]),
    unknown("max_tokens", 5),
]  # fmt: skip


def _block(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "x", **fields}]}]


_USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
_RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "x"}


def _after(block: Any) -> list[dict[str, Any]]:
    return [USER, {"role": "assistant", "content": [block]}, USER]


COUNT: list[Row] = [
    MODEL,
    other("messages",
          ([USER], _block(), _block(cache_control={"type": "ephemeral"}), _block(citations=None),
           [USER, {"role": "assistant", "content": "y"}], _after(_USE),
           [USER, {"role": "assistant", "content": [_USE]}, {"role": "user", "content": [_RESULT]}],
           _after({"type": "thinking", "thinking": "hm", "signature": ""}),
           _after({"type": "redacted_thinking", "data": "x"})),
          ([], {}, "x", 5, True, Wrong(["x"], "[0]"), Wrong([None], "[0]"),
           Wrong([{"content": "x"}], "[0].role", MISSING),
           Wrong([{"role": "god", "content": "x"}], "[0].role"),
           Wrong([{"role": "user"}], "[0].content", MISSING),
           Wrong([{"role": "user", "content": 7}], "[0].content"),
           Wrong([{**USER, "mood": 1}], "[0].mood", UNKNOWN),
           Wrong(_block(text=5), "[0].content[0].text"),
           Wrong(_block(type="song"), "[0].content[0]"),
           Wrong(_block(type=["text"]), "[0].content[0]"),
           Wrong(_block(mood=1), "[0].content[0].mood", UNKNOWN),
           Wrong(_block(type="image"), "[0].content[0]", UNSUPPORTED),
           Wrong(_after({**_USE, "input": "x"}), "[1].content[0].input"),
           Wrong(_after({**_USE, "name": "a b"}), "[1].content[0].name"),
           Wrong(_after({"type": "tool_result", "content": "x"}), "[1].content[0].tool_use_id",
                 MISSING),
           [USER] * 2049),
          is_required=True),
    other("system", ("", "Be kind.", [], [{"type": "text", "text": "x"}]),
          (5, {}, True, Wrong(["x"], "[0]"), Wrong([{"type": "text"}], "[0].text", MISSING),
           Wrong([{"type": "image", "source": {}}], "[0]", UNSUPPORTED))),
    other("tools", ([], [_TOOL],
                    [{**_TOOL, "type": "custom", "cache_control": {}, "strict": False}]),
          ({}, "f", 5, True, Wrong(["f"], "[0]"),
           Wrong([{"name": "f"}], "[0].input_schema", MISSING),
           Wrong([{"input_schema": {}}], "[0].name", MISSING),
           Wrong([{**_TOOL, "name": "a b"}], "[0].name"),
           Wrong([{**_TOOL, "input_schema": []}], "[0].input_schema"),
           Wrong([{**_TOOL, "type": "bash_20250124"}], "[0].type"),
           Wrong([{**_TOOL, "defer_loading": True}], "[0].defer_loading", UNSUPPORTED),
           Wrong([{**_TOOL, "mood": 1}], "[0].mood", UNKNOWN),
           [_TOOL] * 2, [_TOOL] * 129)),
    other("tool_choice", ({"type": "auto"}, {"type": "none"}),
          ([], "auto", 5, True, Wrong({}, ".type", MISSING), Wrong({"type": "some"}, ".type"),
           {"type": "any"}, {"type": "tool", "name": "f"})),
    other("tool_choice", ({"type": "any"}, {"type": "tool", "name": "f"},
                          {"type": "auto", "disable_parallel_tool_use": True}),
          (Wrong({"type": "tool"}, ".name", MISSING), Wrong({"type": "tool", "name": "g"}, ".name"),
           Wrong({"type": "tool", "name": 5}, ".name"),
           Wrong({"type": "any", "disable_parallel_tool_use": 1}, ".disable_parallel_tool_use")),
          beside={"tools": [_TOOL]}),
    other("thinking", ({"type": "disabled"}, {"type": "adaptive"},
                       {"type": "enabled", "budget_tokens": 1024}),
          ([], "x", 5, True, Wrong({}, ".type", MISSING), Wrong({"type": "some"}, ".type"),
           Wrong({"type": "enabled", "budget_tokens": 0}, ".budget_tokens"))),
    other("output_config", ({}, {"effort": "low"}, {"format": {"type": "json_schema",
                                                               "schema": _SCHEMA}}),
          ([], "x", 5, True, Wrong({"effort": "none"}, ".effort"),
           Wrong({"format": "json"}, ".format"), Wrong({"mood": 1}, ".mood", UNKNOWN))),
    idle("cache_control", ({}, {"type": "ephemeral"}), ("x", [], 5)),
    unsupported("container", "c"),
    unsupported("context_management", {"edits": [1]}),
    unsupported("inference_geo", "eu"),
    unsupported("mcp_servers", [{"url": "http://x"}], good=([],)),
    unsupported("speed", "fast", good=("standard",)),
    unknown("not_a_field", 1),
]  # fmt: skip
ANTHROPIC: list[Row] = [
    *COUNT,
    other("messages", (), (Wrong([{"role": "user", "content": "a " * 600}], code=TOO_LONG),),
          is_required=True),
    whole("max_tokens", (1, 16, 512), (0, -1, Wrong(513, code=TOO_LONG)), is_required=True),
    other("stop_sequences", ([], ["x"], ["a", "b", "c", "d"], ["x" * 256]),
          ("x", {}, 5, True, ["a"] * 5, Wrong([""], "[0]"), Wrong([5], "[0]"),
           Wrong(["x" * 257], "[0]"))),
    flag("stream"),
    number("temperature", (0, 0.5, 1, 2), (-0.1, 2.1, 10**400), reaches="temperature"),
    number("top_p", (5e-324, 0.5, 1), (0, 1.5, 10**400), reaches="top_p"),
    whole("top_k", (1, VOCAB), (-2, 2**31, 10**400), reaches="top_k"),
    idle("metadata", ({}, {"user_id": "u"}), ("x", [], 5)),
    idle("service_tier", ("auto", "standard_only"), kind="text"),
    other("output_config", (), (
        Wrong({"format": {"type": "json_schema", "schema": {"not": {}}}}, ".format.schema"),
        Wrong({"format": {"type": "xml"}}, ".format.type"),
        Wrong({"format": {"type": "json_schema"}}, ".format.schema", MISSING))),
    unknown("stop", "x"),
]  # fmt: skip
