"""Answers of POST /v1/chat/completions."""

from dataclasses import replace
from typing import Any

from app.protocol.answer import AnswerWriter, Usage
from app.text.choice_text import TextDelta


class ChatAnswer(AnswerWriter):
    """Choices with a message, or in chunks with the new part of a message."""

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def _opening(self, first: TextDelta, usage: Usage) -> list[bytes]:
        """Return the chunks that name the role; the first also has what is wanted of the prompt."""
        extras: dict[str, Any] = {}
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
        return chunks

    def _whole(self, index: int, text: TextDelta) -> dict[str, Any]:
        return {
            "index": index,
            "message": {
                "role": "assistant",
                "content": text.text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": self._logprobs_of(text),
            "finish_reason": text.finish_reason,
            "stop_reason": text.stop_reason,
            "token_ids": text.token_ids if self._wants_ids else None,
        }

    def _whole_extras(self, first: TextDelta) -> dict[str, Any]:
        return {
            "prompt_logprobs": self._prompt_logprobs(0, first),
            "prompt_token_ids": self._prompt_ids(0) if self._wants_ids else None,
        }

    def _text_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        choice = self._delta_choice(index, {"content": delta.text})
        return {**choice, "logprobs": self._logprobs_of(delta), **self._ids(delta)}

    def _last_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        return {
            **self._delta_choice(index, {}),
            "logprobs": self._logprobs_of(delta) if delta.logprobs else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            **self._ids(delta),
        }

    def _delta_choice(self, index: int, delta: dict[str, str]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs_of(self, delta: TextDelta) -> dict[str, Any] | None:
        return self._logprobs.chat(delta.logprobs) if self._wants_logprobs else None
