"""Answers of POST /v1/messages: blocks, or the events by which they grow.

https://docs.anthropic.com/en/docs/build-with-claude/streaming
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from app.protocol.answer import AnswerContext, Usage
from app.protocol.chat.events import event
from app.protocol.chat.reply_reader import ReplyReader, whole
from app.text.beam_text import BeamProgress
from app.text.choice_text import TextDelta
from app.text.reply.formats import ReplyFormat
from app.text.reply.parts import ReplyPart


class MessagesAnswer:
    """Writes the one answer of a request."""

    # each event has more to it than text
    text_chunk = None

    def __init__(self, context: AnswerContext) -> None:
        self._context = context
        self._reader = ReplyReader(context.reply or ReplyFormat())
        self._has_begun = False
        self._open: ReplyPart | None = None
        self._num_blocks = 0
        self._end: TextDelta | None = None

    def complete(self, choices: Sequence[TextDelta], usage: Usage) -> bytes:
        """Return the message with all of its blocks."""
        [text] = choices
        blocks = [_block(part) for part in whole(self._reader.push(text))]
        self._end = text
        message = {**self._message(usage), **self._stop(), "content": blocks}
        return msgspec.json.encode(message)

    def update_chunks(self, index: int, delta: TextDelta, usage: Usage) -> list[bytes]:
        """Return the events for what is new."""
        events = []
        if not self._has_begun:
            self._has_begun = True
            events.append(event("message_start", message=self._message(usage)))
        for part in self._reader.push(delta):
            if not self._takes(part):
                events += self._finish_block()
                block = _block(part.with_text(""))
                events.append(self._event("content_block_start", content_block=block))
                self._open = part
            if part.text:
                events.append(self._event("content_block_delta", delta=_delta(part)))
        if delta.finish_reason is not None:
            self._end = delta
        return events

    def progress_chunk(self, first: int, progress: BeamProgress) -> bytes:
        """There are no beam searches here."""
        raise AssertionError("a message is no beam search")

    def closing_chunks(self, usage: Usage) -> list[bytes]:
        """Return the events that end the last block and the message."""
        end = event("message_delta", delta=self._stop(), usage=_usage(usage))
        return [*self._finish_block(), end, event("message_stop")]

    def _takes(self, part: ReplyPart) -> bool:
        last = self._open
        return last is not None and (part.kind, part.number) == (last.kind, last.number)

    def _finish_block(self) -> list[bytes]:
        if self._open is None:
            return []
        events = [self._event("content_block_stop")]
        self._open = None
        self._num_blocks += 1
        return events

    def _event(self, name: str, /, **fields: Any) -> bytes:
        return event(name, index=self._num_blocks, **fields)

    def _message(self, usage: Usage) -> dict[str, Any]:
        return {
            "id": f"msg_{self._context.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._context.settings.model_id,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }

    def _stop(self) -> dict[str, Any]:
        """Return why the message ended."""
        end = self._end
        reason, sequence = "end_turn", None
        if end is not None and self._reader.finish_reason(end) == "tool_calls":
            reason = "tool_use"
        elif end is not None and end.finish_reason == "length":
            reason = "max_tokens"
        elif end is not None and end.finish_reason == "stop" and isinstance(end.stop_reason, str):
            reason, sequence = "stop_sequence", end.stop_reason
        return {"stop_reason": reason, "stop_sequence": sequence}


def _usage(usage: Usage) -> dict[str, Any]:
    """Return what was read and written; what was cached is counted by itself."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _block(part: ReplyPart) -> dict[str, Any]:
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": _input(part.text)}


def _input(arguments: str) -> dict[str, Any]:
    """Return arguments as an object; those that broke off have none."""
    try:
        value = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _delta(part: ReplyPart) -> dict[str, Any]:
    if part.kind == "text":
        return {"type": "text_delta", "text": part.text}
    if part.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": part.text}
    return {"type": "input_json_delta", "partial_json": part.text}
