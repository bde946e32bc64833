"""Answers of POST /v1/responses: items, or the events by which they grow."""

from collections.abc import Sequence
from typing import Any

import msgspec

from app.protocol.answer import AnswerContext, Usage
from app.protocol.chat.events import event
from app.protocol.chat.reply_reader import ReplyReader, whole
from app.protocol.chat_request import ChatRequest
from app.protocol.logprobs import LogprobWriter
from app.protocol.responses.items_of_answer import GrowingItem, Ids, begin_item, item_of
from app.protocol.responses.request import ResponsesRequest
from app.text.beam_text import BeamProgress
from app.text.choice_text import TextDelta
from app.text.reply.formats import ReplyFormat


class ResponsesAnswer:
    """Writes the one answer of a request; its events come in the order that OpenAI publishes.

    https://platform.openai.com/docs/api-reference/responses-streaming
    """

    # each event has more to it than text
    text_chunk = None

    def __init__(
        self, body: ResponsesRequest, request: ChatRequest, context: AnswerContext
    ) -> None:
        """Args: body: what the client sent; request: the chat that it is."""
        self._body = body
        self._request = request
        self._context = context
        self._reader = ReplyReader(context.reply or ReplyFormat())
        self._ids = Ids(context.request_id)
        self._logprobs = LogprobWriter(context.vocabulary, as_ids=False)
        self._items: list[dict[str, Any]] = []
        self._open: GrowingItem | None = None
        self._num_events = 0
        self._end: TextDelta | None = None

    def complete(self, choices: Sequence[TextDelta], usage: Usage) -> bytes:
        """Return the response with all of its items."""
        [text] = choices
        self._end = text
        parts = whole(self._reader.push(text))
        status = "incomplete" if _is_cut(text) else "completed"
        last = len(parts) - 1
        self._items = [
            item_of(part, self._ids, status if index == last else "completed")
            for index, part in enumerate(parts)
        ]
        self._add_logprobs(text)
        return msgspec.json.encode(self._response(status, usage))

    def update_chunks(self, index: int, delta: TextDelta, usage: Usage) -> list[bytes]:
        """Return the events for what is new."""
        events: list[bytes] = []
        if not self._num_events:
            begun = self._response("in_progress", None)
            names = ("response.created", "response.in_progress")
            events = [self._event(name, response=begun) for name in names]
        logprobs = self._logprobs_of(delta)
        for part in self._reader.push(delta):
            if self._open is None or not self._open.takes(part):
                events += self._finish_item("completed")
                self._open = begin_item(part, self._ids, len(self._items))
                events += self._numbered(self._open.opening())
            events += self._numbered(self._open.add(part, logprobs))
            logprobs = []
        if delta.finish_reason is not None:
            self._end = delta
        return events

    def progress_chunk(self, first: int, progress: BeamProgress) -> bytes:
        """There are no beam searches here."""
        raise AssertionError("a response is no beam search")

    def closing_chunks(self, usage: Usage) -> list[bytes]:
        """Return the events that end the last item and the response."""
        status = "incomplete" if self._end is not None and _is_cut(self._end) else "completed"
        events = self._finish_item(status)
        events.append(self._event(f"response.{status}", response=self._response(status, usage)))
        return events

    def _finish_item(self, status: str) -> list[bytes]:
        if self._open is None:
            return []
        events = self._numbered(self._open.closing(status))
        self._items.append(self._open.item)
        self._open = None
        return events

    def _numbered(self, events: Sequence[tuple[str, dict[str, Any]]]) -> list[bytes]:
        return [self._event(name, **fields) for name, fields in events]

    def _event(self, name: str, /, **fields: Any) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return event(name, sequence_number=number, **fields)

    def _logprobs_of(self, delta: TextDelta) -> list[dict[str, Any]]:
        if self._request.num_logprobs is None:
            return []
        content: list[dict[str, Any]] = self._logprobs.chat(delta.logprobs)["content"]
        return content

    def _add_logprobs(self, text: TextDelta) -> None:
        for item in self._items:
            if item["type"] == "message":
                item["content"][0]["logprobs"] = self._logprobs_of(text)
                return

    def _response(self, status: str, usage: Usage | None) -> dict[str, Any]:
        body = self._body
        return {
            "id": f"resp_{self._context.request_id}",
            "object": "response",
            "created_at": self._context.created_s,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if status == "incomplete" else None
            ),
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self._context.settings.model_id,
            "output": self._items,
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": body.reasoning.model_dump(include={"effort", "summary"}),
            "service_tier": None,
            "store": False,
            "temperature": self._request.temperature,
            "text": {"format": body.text.format},
            "tool_choice": (
                body.tool_choice
                if isinstance(body.tool_choice, str)
                else body.tool_choice.model_dump()
            ),
            "tools": [tool.model_dump() for tool in body.tools],
            "top_logprobs": body.top_logprobs,
            "top_p": self._request.top_p,
            "truncation": body.truncation,
            "usage": None if usage is None else self._usage(usage),
            "user": body.user,
            "metadata": body.metadata or {},
        }

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reader.num_reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


def _is_cut(text: TextDelta) -> bool:
    return text.finish_reason == "length"
