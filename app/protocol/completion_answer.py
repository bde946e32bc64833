"""Answers of POST /v1/completions."""

from collections.abc import Sequence
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
            "prompt_logprobs": None,
            "prompt_token_ids": self._prompts[index].tolist() if self._wants_ids else None,
        }

    def _text_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        going_on = TextDelta(text=delta.text, token_ids=delta.token_ids, logprobs=delta.logprobs)
        return {**self._choice(index, going_on), **self._new_ids(index, delta)}

    def _last_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        return {**self._choice(index, delta), **self._new_ids(index, delta)}

    def _new_ids(self, index: int, delta: TextDelta) -> dict[str, Any]:
        """The first chunk of a choice also has the ids of its prompt."""
        if not self._wants_ids or index in self._announced:
            return self._ids(delta)
        self._announced.add(index)
        return {"prompt_token_ids": self._prompts[index].tolist(), **self._ids(delta)}

    def _choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        has_logprobs = self._wants_logprobs and (delta.logprobs or delta.text)
        return {
            "index": index,
            "text": delta.text,
            "logprobs": self._logprobs.completion(delta.logprobs) if has_logprobs else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
