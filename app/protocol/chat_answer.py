"""Answers of POST /v1/chat/completions."""

from dataclasses import replace
from typing import Any

from app.protocol.answer import AnswerContext, AnswerWriter, TextChunk, Usage
from app.protocol.chat.reply_reader import ReplyReader, whole
from app.protocol.chat_request import ChatRequest
from app.text.choice_text import TextDelta
from app.text.reply.parts import ReplyPart


class ChatAnswer(AnswerWriter):
    """Choices with a message, or in chunks with the new part of a message."""

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def __init__(self, request: ChatRequest, context: AnswerContext) -> None:
        super().__init__(request, context)
        self._reply = context.reply
        self._echoed = request.echoed
        shown = context.prompt_text
        self._prompt_text = {} if shown is None else {"prompt_text": shown}
        self._readers: dict[int, ReplyReader] = {}

    @property
    def text_chunk(self) -> TextChunk | None:
        """See `GenerationAnswer.text_chunk`."""
        # a reply that is taken apart is more than text
        return super().text_chunk if self._reply is None else None

    def _opening(self, first: TextDelta, usage: Usage) -> list[bytes]:
        """Return the chunks that name the role; the first also has what is wanted of the prompt."""
        extras: dict[str, Any] = {**self._prompt_text}
        if self._wants_ids:
            extras["prompt_token_ids"] = self._prompt_ids(0)
        if self._wants_prompt_logprobs:
            extras["prompt_logprobs"] = self._prompt_logprobs(0, first)
        usage = replace(usage, completion_tokens=0)
        chunks = []
        for index in range(self._num_choices):
            choice = self._delta_choice(index, {"role": "assistant", "content": ""})
            chunks.append(self._chunk([choice], usage, **extras))
            extras = {}
            if self._echoed:
                echoed = self._delta_choice(index, {"content": self._echoed})
                chunks.append(self._chunk([echoed], usage))
        return chunks

    def _whole(self, index: int, text: TextDelta) -> dict[str, Any]:
        return {
            "index": index,
            "message": {
                "role": "assistant",
                "content": self._echoed + text.text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
                **self._whole_parts(index, text),
            },
            "logprobs": self._logprobs_of(text),
            "finish_reason": self._finish_reason(index, text),
            "stop_reason": text.stop_reason,
            "token_ids": text.token_ids if self._wants_ids else None,
        }

    def _whole_extras(self, first: TextDelta) -> dict[str, Any]:
        return {
            "prompt_logprobs": self._prompt_logprobs(0, first),
            "prompt_token_ids": self._prompt_ids(0) if self._wants_ids else None,
            **self._prompt_text,
        }

    def _whole_parts(self, index: int, text: TextDelta) -> dict[str, Any]:
        """Return the fields of a message that are parts of a reply."""
        reader = self._reader(index)
        if reader is None:
            return {}
        parts = whole(reader.push(text))
        calls = [_call(part) for part in parts if part.kind == "call"]
        content = "".join(part.text for part in parts if part.kind == "text")
        reasoning = "".join(part.text for part in parts if part.kind == "reasoning")
        return {
            "content": self._echoed + content or (None if calls else ""),
            "reasoning": reasoning or None,
            **({"tool_calls": calls} if calls else {}),
        }

    def _new_choices(self, index: int, delta: TextDelta) -> list[dict[str, Any]]:
        reader = self._reader(index)
        if reader is None:
            return super()._new_choices(index, delta)
        choices = [self._delta_choice(index, _delta(part)) for part in reader.push(delta)]
        has_more = bool(self._logprobs_of(delta)) or self._wants_ids or bool(delta.prompt)
        if has_more and (delta.text or delta.finish_reason is None):
            # what is of tokens comes with the first part, or with none while text is held back
            first = choices[0] if choices else self._delta_choice(index, {})
            first |= {"logprobs": self._logprobs_of(delta), **self._ids(delta)}
            choices[:1] = [first]
        return choices

    def _reader(self, index: int) -> ReplyReader | None:
        if self._reply is None:
            return None
        if index not in self._readers:
            self._readers[index] = ReplyReader(self._reply)
        return self._readers[index]

    def _finish_reason(self, index: int, delta: TextDelta) -> str | None:
        reader = self._reader(index)
        return delta.finish_reason if reader is None else reader.finish_reason(delta)

    def _usage(self, usage: Usage) -> dict[str, Any]:
        num_reasoning = sum(reader.num_reasoning_tokens for reader in self._readers.values())
        details = {"completion_tokens_details": {"reasoning_tokens": num_reasoning}}
        return usage.as_json() | (details if self._readers else {})

    def _text_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        choice = self._delta_choice(index, {"content": delta.text})
        return {**choice, "logprobs": self._logprobs_of(delta), **self._ids(delta)}

    def _last_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        return {
            **self._delta_choice(index, {}),
            "logprobs": self._logprobs_of(delta) if delta.logprobs else None,
            "finish_reason": self._finish_reason(index, delta),
            "stop_reason": delta.stop_reason,
            **self._ids(delta),
        }

    def _delta_choice(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs_of(self, delta: TextDelta) -> dict[str, Any] | None:
        return self._logprobs.chat(delta.logprobs) if self._wants_logprobs else None


def _call(part: ReplyPart) -> dict[str, Any]:
    function = {"name": part.name, "arguments": part.text}
    return {"id": part.id, "type": "function", "function": function}


def _delta(part: ReplyPart) -> dict[str, Any]:
    """Return the delta of a message that adds a part."""
    if part.kind == "text":
        return {"content": part.text}
    if part.kind == "reasoning":
        return {"reasoning": part.text}
    call = _call(part) if part.name is not None else {"function": {"arguments": part.text}}
    return {"tool_calls": [{"index": part.number, **call}]}
