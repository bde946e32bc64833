"""Answers of POST /v1/completions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.protocol.answer import AnswerHead, AnswerWriter
from app.protocol.fields import GenerationFields
from app.text.choice_text import TextDelta
from app.text.vocabulary import Vocabulary
from engine.types import IntColumn


class CompletionAnswer(AnswerWriter):
    """Choices with `text` and the older shape of log-probabilities."""

    id_prefix = "cmpl-"
    object_name = "text_completion"
    chunk_object_name = "text_completion"

    def __init__(
        self,
        head: AnswerHead,
        request: GenerationFields,
        vocabulary: Vocabulary,
        prompts: Sequence[IntColumn],
    ) -> None:
        super().__init__(head, request, vocabulary, prompts)
        self._announced: set[int] = set()

    def _whole(self, index: int, text: TextDelta) -> dict[str, Any]:
        return {
            **self._choice(index, text),
            "token_ids": text.token_ids if self._wants_ids else None,
            "prompt_logprobs": self._prompt_logprobs(text),
            "prompt_token_ids": self._prompt_ids(index) if self._wants_ids else None,
        }

    def _text_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        going_on = replace(delta, finish_reason=None, stop_reason=None)
        return {**self._choice(index, going_on), **self._news(index, delta)}

    def _last_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        return {**self._choice(index, delta), **self._news(index, delta)}

    def _news(self, index: int, delta: TextDelta) -> dict[str, Any]:
        """The first chunk of a choice also tells what is wanted of its prompt."""
        news: dict[str, Any] = self._ids(delta)
        if index in self._announced:
            return news
        self._announced.add(index)
        if self._wants_ids:
            news["prompt_token_ids"] = self._prompt_ids(index)
        if self._wants_prompt_logprobs:
            news["prompt_logprobs"] = self._prompt_logprobs(delta)
        return news

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
