"""Answers of POST /v1/completions."""

from dataclasses import replace
from typing import Any

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
            "prompt_logprobs": self._prompt_logprobs(text),
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
            extras["prompt_logprobs"] = self._prompt_logprobs(delta)
        return extras

    def _prompt_ids(self, index: int) -> list[int]:
        return self._prompts[index // self._num_choices].tolist()

    def _choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        has_logprobs = self._wants_logprobs and (delta.logprobs or delta.text)
        return {
            "index": index,
            "text": delta.text,
            "logprobs": self._logprobs.completion(delta.logprobs) if has_logprobs else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
