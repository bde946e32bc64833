"""Earlier calls and results, in the shapes that chat templates take."""

from typing import Any

from app.text.reply.formats import FORMATS
from app.text.reply.history import for_template

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
USER = {"role": "user", "content": "Hi"}


def call(id: str | None, **arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}


def said(*calls: dict[str, Any], content: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(id: str | None, content: str = "1") -> dict[str, Any]:
    linked = {} if id is None else {"tool_call_id": id}
    return {"role": "tool", "content": content, **linked}


def shown(format: str, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    return for_template(messages, TOOLS, FORMATS[format])[0]


def test_missing_ids_are_given_in_order() -> None:
    turns = [said(call(None), call("x"), call(None)), result(None), result("x"), result(None)]
    _, first, *results = shown("hermes", USER, *turns, said(call(None)), result(None))
    ids = [inner["id"] for inner in first["tool_calls"]]
    assert len(set(ids)) == 3
    assert ids[1] == "x"
    *linked, again, last = results
    assert [message["tool_call_id"] for message in linked] == ids
    assert last["tool_call_id"] == again["tool_calls"][0]["id"]
    assert last["tool_call_id"] not in ids


def test_ids_get_the_length_that_the_template_wants() -> None:
    [said_, linked] = shown("mistral", said(call("call_123")), result("call_123"))
    [own] = shown("mistral", said(call("abcDEF123")))
    assert said_["tool_calls"][0]["id"] == linked["tool_call_id"]
    assert len(linked["tool_call_id"]) == 9
    assert own["tool_calls"][0]["id"] == "abcDEF123"


def test_calls_are_spread_where_a_message_may_have_one() -> None:
    turns = [said(call("a"), call("b"), content="both"), result("b", "2"), result("a", "1"), USER]
    assert shown("llama3_json", *turns) == [
        said(call("a"), content="both"), result("a", "1"), said(call("b")), result("b", "2"), USER
    ]  # fmt: skip


def test_a_template_without_tools_gets_a_system_message() -> None:
    messages, tools = for_template([USER], TOOLS, FORMATS["smollm2"])
    assert tools == []
    assert messages[0]["role"] == "system"
    assert '<tools>[{"name": "f", "parameters": {}}]</tools>' in messages[0]["content"]
    assert messages[1:] == [USER]


def test_it_goes_behind_the_client_s_own() -> None:
    own = {"role": "developer", "content": "Be brief."}
    first, *rest = shown("smollm2", own, USER)
    assert first["content"].startswith("Be brief.\n\nYou are an expert")
    assert rest == [USER]


def test_calls_and_results_become_text_for_it() -> None:
    turns = [said(call("a", x=1), content="Hm."), said(call("b")), result("a", "é")]
    assert shown("smollm2", *turns)[1:] == [
        {
            "role": "assistant",
            "content": 'Hm.\n<tool_call>[{"name": "f", "arguments": {"x": 1}}]</tool_call>',
        },
        {"role": "assistant", "content": '<tool_call>[{"name": "f", "arguments": {}}]</tool_call>'},
        {"role": "user", "content": "<tool_response>\né\n</tool_response>"},
    ]


def test_without_tools_and_calls_nothing_changes() -> None:
    for style in FORMATS.values():
        assert for_template([USER], [], style) == ([USER], [])
