"""Answers of POST /v1/completions."""

from dataclasses import replace
from typing import Any

import msgspec

from app.protocol.answer import AnswerWriter
from app.text.choice_text import TextDelta


class CompletionAnswer(AnswerWriter):
    """Choices with `text` and the older shape of log-probabilities."""

    id_prefix = "cmpl-"
    object_name = "text_completion"
    chunk_object_name = "text_completion"

    def _whole(self, index: int, text: TextDelta) -> dict[str, Any]:
        return {
            **self._choice(index, text),
            "token_ids": text.token_ids if self._wants_ids else None,
            "prompt_logprobs": self._prompt_logprobs(index, text),
            "prompt_token_ids": self._prompt_ids(index) if self._wants_ids else None,
        }

    def _text_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        going_on = replace(delta, finish_reason=None, stop_reason=None)
        return {**self._choice(index, going_on), **self._extras(index, delta)}

    def _last_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        return {**self._choice(index, delta), **self._extras(index, delta)}

    def _extras(self, index: int, delta: TextDelta) -> dict[str, Any]:
        """Return new token ids, and once per choice what is wanted of its prompt."""
        extras: dict[str, Any] = self._ids(delta)
        if index in self._announced:
            return extras
        self._announced.add(index)
        if self._wants_ids:
            extras["prompt_token_ids"] = self._prompt_ids(index)
        if self._wants_prompt_logprobs:
            extras["prompt_logprobs"] = self._prompt_logprobs(index, delta)
        return extras

    def _choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        has_logprobs = self._wants_logprobs and (delta.logprobs or delta.text)
        return {
            "index": index,
            "text": delta.text,
            "logprobs": self._logprobs_of(index, delta) if has_logprobs else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def _logprobs_of(self, index: int, delta: TextDelta) -> dict[str, Any]:
        own = self._logprobs.completion(delta.logprobs[delta.num_echoed :])
        if not delta.num_echoed:
            return own
        echoed = self._once("echo", index, lambda: self._echoed(delta))
        return {name: _joined(echoed[name], values) for name, values in own.items()}

    def _echoed(self, delta: TextDelta) -> dict[str, bytes]:
        """Return the lists of a prompt's log-probabilities, as JSON."""
        columns = self._logprobs.completion(delta.logprobs[: delta.num_echoed])
        return {name: msgspec.json.encode(values) for name, values in columns.items()}


def _joined(first: bytes, more: list[Any]) -> msgspec.Raw:
    """Put two lists together, of which the first is encoded already and not empty."""
    rest = msgspec.json.encode(more)[1:]
    return msgspec.Raw(first[:-1] + (b"," if more else b"") + rest)
