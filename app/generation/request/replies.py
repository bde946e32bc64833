"""How the reply of a chat will be taken apart, and the grammar that it must follow."""

import json
from dataclasses import replace
from typing import Any

from app.generation.request.prompt_encoder import PromptEncoder
from app.grammars.grammar_spec import GrammarSpec
from app.protocol.chat.messages import text_of
from app.protocol.chat_request import ChatRequest
from app.protocol.errors import UnsupportedParameter
from app.text.reply.call_grammar import CallFrame, CallRules, call_grammar
from app.text.reply.formats import ReplyFormat
from app.text.reply.thinking import is_inside, is_opened_by
from engine.types import IntColumn

# enough for what a template opens an answer with
_NUM_LAST_TOKENS = 16


def reply_of(
    encoder: PromptEncoder, request: ChatRequest, ids: IntColumn
) -> tuple[ReplyFormat | None, GrammarSpec | None]:
    """Return how to read a reply, None where it is text and nothing else; and its grammar.

    Args:
        ids: int32 token ids of the prompt.

    Raises:
        UnsupportedParameter: if the model's format has no grammar, or the answer's has another one.
    """
    style, tools = encoder.style, request.offered_tools
    may_call = bool(tools) or style.calls.has_channels
    reply = ReplyFormat(
        calls=style.calls if may_call else None,
        tools=frozenset(tool.function.name for tool in tools),
        max_calls=None if request.parallel_tool_calls else 1,
        thinks=style.thinks,
        is_thinking=style.thinks and _is_thinking(encoder, request, ids),
        keeps_reasoning=request.include_reasoning,
    )
    spec = _grammar(encoder, request, reply)
    if spec is not None and spec == request.grammar_spec:
        # what matches a grammar begins with its first character
        reply = replace(reply, thinks=False, is_thinking=False)
    is_forced = spec is not None and bool(tools)
    is_plain = reply.calls is None and not reply.thinks
    return None if is_plain else replace(reply, is_forced=is_forced), spec


def _is_thinking(encoder: PromptEncoder, request: ChatRequest, ids: IntColumn) -> bool:
    if request.continue_final_message:
        return is_inside(text_of(request.messages[-1].content))
    return is_opened_by(encoder.decode(ids[-_NUM_LAST_TOKENS:]))


def _grammar(
    encoder: PromptEncoder, request: ChatRequest, reply: ReplyFormat
) -> GrammarSpec | None:
    """Return the grammar of calls and text together, or that of the text where it is enough."""
    answer, tools = request.grammar_spec, request.offered_tools
    is_checked = request.must_call or any(tool.function.strict for tool in tools)
    if not is_checked and (answer is None or not (tools or reply.thinks)):
        return answer
    if request.must_call:
        answer = None
    schema = _schema_of(answer)
    if answer is not None and schema is None:
        # only of a schema a part of a larger grammar can be made
        if tools and answer.kind != "json":
            raise UnsupportedParameter(
                f"{answer.field}: it cannot be used with tools", param=answer.field
            )
        return answer
    frame = _frame(encoder, request) if tools else CallFrame()
    rules = CallRules(
        functions=[tool.function.model_dump() for tool in tools],
        must_call=request.must_call,
        only_one=not request.parallel_tool_calls,
        answer=schema,
        thinks=reply.thinks and not request.continue_final_message,
        is_thinking=reply.is_thinking,
    )
    ids = {text: id for id, text in encoder.vocabulary.special_texts.items()}
    field = "tools" if answer is None else answer.field
    return GrammarSpec(kind="grammar", content=call_grammar(frame, rules, ids), field=field)


def _schema_of(answer: GrammarSpec | None) -> dict[str, Any] | None:
    """Return what the JSON of an answer must match; None for other kinds, and if it is broken."""
    if answer is None or answer.kind != "json":
        return None
    try:
        schema = json.loads(answer.content)
    except (ValueError, RecursionError):
        return None
    return schema if isinstance(schema, dict) else None


def _frame(encoder: PromptEncoder, request: ChatRequest) -> CallFrame:
    frame = encoder.style.calls.frame
    if frame is None:
        field = "tool_choice" if request.must_call else "tools"
        reason = (
            f"this model writes calls as {encoder.style.name}, of which none can be forced or "
            'checked; use "auto" without strict functions, and no response_format beside tools'
        )
        raise UnsupportedParameter(f"{field}: {reason}", param=field)
    return frame
