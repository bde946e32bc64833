"""Fields of /v1/chat/completions, and of messages and tools wherever they stand."""

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
    other,
    text,
    unknown,
    unsupported,
    whole,
)
from tests.app.api.fields.shared_rows import GENERATION, IDS_AT_FAULT, STREAM_OPTIONS_ALONE
from tests.app.api.fields.structured_rows import STRUCTURED

USER = {"role": "user", "content": "x"}
TOOL = {"type": "function", "function": {"name": "f"}}
_MARKED = {"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}
_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_NAMED = {"type": "function", "function": {"name": "f"}}


def _said(**fields: Any) -> list[dict[str, Any]]:
    return [{**USER, **fields}]


def _by_assistant(**fields: Any) -> list[dict[str, Any]]:
    return [USER, {"role": "assistant", **fields}, USER]


def _calling(call: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": "x", "tool_calls": [call]}]


def _deep(levels: int) -> Any:
    return 1 if levels == 0 else {"a": _deep(levels - 1)}


MESSAGES = other(
    "messages",
    ([USER], [USER] * 40, _said(role="developer"), _said(role="system"), _said(name="ada-L.1_"),
     _said(name=""), _said(content=""), _said(content=[{"type": "text", "text": "a"}]),
     _said(content=[{"type": "text", "text": "", "annotations": None, "cache_control": {}}]),
     _by_assistant(content=None), _by_assistant(content=""), _by_assistant(content=[]),
     _by_assistant(), _by_assistant(refusal="no"), _by_assistant(content="a", refusal=None,
     annotations=[], tool_calls=[], audio=None, function_call=None),
     _by_assistant(content=[{"type": "refusal", "refusal": "no"}]),
     _by_assistant(tool_calls=[_CALL]), _by_assistant(tool_calls=[{"function": {"name": "f"}}]),
     _by_assistant(tool_calls=[{"function": {"name": "f", "arguments": {"a": 1}}}]),
     _by_assistant(tool_calls=[{**_CALL, "index": 0}]), _by_assistant(reasoning="hm"),
     _by_assistant(reasoning_content="hm"), _by_assistant(function_call={"name": "f"}),
     [USER, {"role": "tool", "tool_call_id": "1", "content": "x"}],
     [USER, {"role": "function", "name": "f", "content": "x"}],
     _said(content="\0\u202e\ufffe"), _said(content="<|im_end|>"),
     _said(content=[_MARKED]), _said(content=[{**_MARKED, "prompt_cache_breakpoint": None}])),
    ([], {}, USER, "x", 5, True, Wrong(["x"], "[0]"), Wrong([None], "[0]"), Wrong([[USER]], "[0]"),
     Wrong(_said(role="god"), "[0].role"), Wrong(_said(role=5), "[0].role"),
     Wrong([{"content": "x"}], "[0].role", MISSING),
     Wrong([{"role": "user"}], "[0].content", MISSING),
     Wrong(_said(content=None), "[0].content", MISSING), Wrong(_said(content=7), "[0].content"),
     Wrong(_said(content={}), "[0].content"), Wrong(_said(content=[]), "[0].content"),
     Wrong(_said(content=["a"]), "[0].content[0]"),
     Wrong(_said(content=[{"type": "text"}]), "[0].content[0].text", MISSING),
     Wrong(_said(content=[{"type": "text", "text": 5}]), "[0].content[0].text"),
     Wrong(_said(content=[{"type": "song", "text": "a"}]), "[0].content[0].type"),
     Wrong(_said(content=[{"type": "text", "text": "a", "mood": 1}]), "[0].content[0].mood",
           UNKNOWN),
     Wrong(_said(content=[{**_MARKED, "prompt_cache_breakpoint": {}}]),
           "[0].content[0].prompt_cache_breakpoint.mode", MISSING),
     Wrong(_said(content=[{**_MARKED, "prompt_cache_breakpoint": {"mode": "explicit", "ttl": 1}}]),
           "[0].content[0].prompt_cache_breakpoint.ttl"),
     *(Wrong(_said(content=[{"type": kind, kind: {"url": "http://x"}}]), "[0].content[0]",
             UNSUPPORTED) for kind in ("image_url", "input_audio", "video_url", "file")),
     Wrong(_said(name="a\nb"), "[0].name"), Wrong(_said(name="x" * 65), "[0].name"),
     Wrong(_said(name=5), "[0].name"), Wrong(_said(mood=1), "[0].mood", UNKNOWN),
     Wrong(_said(audio={"id": "a"}), "[0].audio", UNSUPPORTED),
     Wrong(_said(tool_call_id="x" * 129), "[0].tool_call_id"),
     Wrong(_said(reasoning=5), "[0].reasoning"), Wrong(_said(tool_calls=[_CALL]), "[0].tool_calls"),
     Wrong(_calling({"id": "1"}), "[0].tool_calls[0].function", MISSING),
     Wrong(_calling({"type": "custom", "function": {"name": "f"}}), "[0].tool_calls[0].type"),
     Wrong(_calling({"function": {"name": "a b"}}), "[0].tool_calls[0].function.name"),
     Wrong(_calling({"function": {"name": "f", "arguments": 1}}),
           "[0].tool_calls[0].function.arguments"),
     Wrong([{**_calling(_CALL)[0], "tool_calls": [_CALL] * 129}], "[0].tool_calls"),
     [USER] * 2049, [USER] * 10_000, Wrong(_said(content="a " * 600), code=TOO_LONG),
     Wrong(_said(content="\U00046131" * 600), code=TOO_LONG)),
    is_required=True,
)  # fmt: skip
TOOLS = other(
    "tools",
    ([], [TOOL], [{"type": "function", "function": {
        "name": "f", "description": "d", "strict": False,
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}],
     [{"type": "function", "function": {"name": f"f{i}"}} for i in range(3)]),
    ({}, TOOL, "f", 5, True, Wrong(["f"], "[0]"), Wrong([None], "[0]"),
     Wrong([{"type": "function"}], "[0].function", MISSING),
     Wrong([{"function": {"name": "f"}}], "[0].type", MISSING),
     Wrong([{"type": "web_search", "function": {"name": "f"}}], "[0].type"),
     Wrong([{"type": "function", "function": {}}], "[0].function.name", MISSING),
     *(Wrong([{"type": "function", "function": {"name": name}}], "[0].function.name")
       for name in ("", "a b", "x" * 65, "ü", 5)),
     Wrong([{"type": "function", "function": {"name": "f", "parameters": []}}],
           "[0].function.parameters"),
     Wrong([{"type": "function", "function": {"name": "f", "strict": 1}}], "[0].function.strict"),
     Wrong([{"type": "function", "function": {"name": "f", "mood": 1}}], "[0].function.mood",
           UNKNOWN),
     [TOOL] * 2, [TOOL] * 129),
)  # fmt: skip
CHAT_ROWS: list[Row] = [
    *GENERATION,
    *STRUCTURED,
    MESSAGES,
    TOOLS,
    whole("max_completion_tokens", (1, 16, 512),
          (0, -1, Wrong(513, code=TOO_LONG), Wrong(10**400, code=TOO_LONG))),
    whole("max_tokens", (), (0,)),
    flag("logprobs"),
    other("logprob_token_ids", ([5], [0, VOCAB - 1], [5] * 128), ([5] * 129, *IDS_AT_FAULT),
          beside={"logprobs": True}),
    whole("top_logprobs", (0,), (-1, 3, 21, 2**63)),
    whole("top_logprobs", (0, 1, 20), (-1, 21, 10**400), beside={"logprobs": True}),
    other("add_generation_prompt", (True, False), (1, "true", [], {})),
    flag("continue_final_message"),
    flag("add_special_tokens"),
    other("chat_template_kwargs",
          ({}, {"enable_thinking": False}, {"a": _deep(8)}, {f"k{i}": i for i in range(1024)}),
          ([], "x", 5, True, {"messages": []}, {"tools": None}, {"range": 1},
           {f"k{i}": i for i in range(1025)})),
    text("reasoning_effort", ("none", "minimal", "low", "medium", "high", "xhigh", "max"),
         ("", "much")),
    flag("include_reasoning"),
    flag("parallel_tool_calls", beside={"tools": [TOOL]}),
    other("tool_choice", ("none", "auto"), ("required", "", "sometimes", 5, True, [], _NAMED)),
    other("tool_choice", ("none", "auto", "required", _NAMED),
          (Wrong({}, ".type", MISSING), Wrong({"type": "function"}, ".function", MISSING),
           Wrong({"type": "function", "function": {}}, ".function.name", MISSING),
           Wrong({"type": "function", "function": {"name": "g"}}, ".function.name"),
           Wrong({"type": "tool", "function": {"name": "f"}}, ".type")),
          beside={"tools": [TOOL]}),
    idle("documents", ([], [{"text": "a"}], [{str(i): "a" for i in range(16)}] * 128),
         (Wrong([5], "[0]"), Wrong([{"a": 1}], "[0].a"), [{"a": "b"}] * 129,
          Wrong([{str(i): "a" for i in range(17)}], "[0]"), {"a": "b"}, "x")),
    idle("metadata", ({}, {"a": "b"}, {str(i): "a" for i in range(16)}),
         (Wrong({"a": 1}, ".a"), {str(i): "a" for i in range(17)}, "x", [])),
    idle("store", (True, False), kind="flag"),
    idle("safety_identifier", ("s",), kind="text"),
    idle("prompt_cache_key", ("s",), kind="text"),
    idle("service_tier", ("auto", "flex"), kind="text"),
    idle("verbosity", ("low", "medium", "high"), ("much",), kind="text"),
    unsupported("best_of", 2, True, good=(1,)),
    flag("echo"),
    flag("return_prompt_text"),
    unsupported("functions", [{"name": "f"}], good=([],)),
    unsupported("function_call", "f", {"name": "f"}, good=("none", "auto")),
    unsupported("chat_template", "x", 5),
    unsupported("media_io_kwargs", {"a": {}}),
    unsupported("mm_processor_kwargs", {"a": 1}),
    unsupported("audio", {"voice": "v"}),
    unsupported("modalities", ["audio"], ["text", "audio"], good=(["text"],)),
    unsupported("moderation", True),
    unsupported("prediction", {"type": "content", "content": "x"}),
    idle("prompt_cache_options", ({}, {"mode": "implicit"}, {"mode": "explicit", "ttl": "12h"}),
         (5, [], "explicit", True, Wrong({"mode": "lazy"}, ".mode"), Wrong({"ttl": "1h"}, ".ttl"),
          Wrong({"ttl": 30}, ".ttl"), Wrong({"size": 1}, ".size", UNKNOWN))),
    unsupported("prompt_cache_retention", "24h"),
    unsupported("web_search_options", {"a": 1}),
    unknown("prompt", "x"),
    unknown("not_a_field", 1, "", [], {}, False),
]  # fmt: skip
TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"max_completion_tokens": 3, "max_tokens": 9, "min_tokens": 4}, "min_tokens"),
    ({"messages": _said(content=[_MARKED] * 5)}, "messages"),
    (
        {"use_beam_search": True, "n": 2, "logprobs": True, "logprob_token_ids": [5]},
        "logprob_token_ids",
    ),
    *STREAM_OPTIONS_ALONE,
    ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
    ({"tools": [TOOL], "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
]
