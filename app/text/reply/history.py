"""Earlier calls of tools and their results, as a model's chat template takes them."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.text.reply.formats import CallFormat
from app.text.reply.instructions import with_instructions

Messages = list[dict[str, Any]]


def for_template(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], style: CallFormat
) -> tuple[Messages, list[Mapping[str, Any]]]:
    """Return the messages and tools that a template of this kind is to see.

    Args:
        messages: with calls as `tool_calls`, each with an `id` or None.
    """
    linked = _with_ids(messages, style.id_len)
    if not style.takes_tools:
        return with_instructions(linked, tools), []
    return (_one_call_each(linked) if style.one_call_each else linked), list(tools)


def _with_ids(messages: Sequence[Mapping[str, Any]], id_len: int | None) -> Messages:
    """Give every call an id, and every result that of its call: the first one without a result."""
    num_calls, waiting = 0, list[str]()
    linked = []
    for message in map(dict, messages):
        if calls := message.get("tool_calls"):
            given = [call["id"] or f"call_{num_calls + n}" for n, call in enumerate(calls)]
            num_calls, waiting = num_calls + len(calls), list(given)
            ids = [_fitting(id, id_len) for id in given]
            message["tool_calls"] = [
                {**call, "id": id} for call, id in zip(calls, ids, strict=True)
            ]
        elif message["role"] == "tool":
            id = message.get("tool_call_id") or (waiting[0] if waiting else "call_0")
            if id in waiting:
                waiting.remove(id)
            message["tool_call_id"] = _fitting(id, id_len)
        linked.append(message)
    return linked


def _fitting(id: str, id_len: int | None) -> str:
    """Return an id of the length that the template wants; equal ones stay equal."""
    if id_len is None or (len(id) == id_len and id.isalnum()):
        return id
    return hashlib.sha256(id.encode()).hexdigest()[:id_len]


def _one_call_each(messages: Messages) -> Messages:
    """Spread calls over messages, each followed by its result."""
    spread: Messages = []
    waiting = list(messages)
    while waiting:
        message = waiting.pop(0)
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            spread.append(message)
            continue
        num_results = next((n for n, m in enumerate(waiting) if m["role"] != "tool"), len(waiting))
        results, waiting = waiting[:num_results], waiting[num_results:]
        spread += _turns(message, results)
    return spread


def _turns(message: dict[str, Any], results: Messages) -> Iterator[dict[str, Any]]:
    content = message["content"]
    for call in message["tool_calls"]:
        yield {**message, "content": content, "tool_calls": [call]}
        content = ""
        yield from (result for result in results if result["tool_call_id"] == call["id"])
    known = {call["id"] for call in message["tool_calls"]}
    yield from (result for result in results if result["tool_call_id"] not in known)
