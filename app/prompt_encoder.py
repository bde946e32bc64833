"""Turns prompts into token ids within the model's limits, without holding up the event loop."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from app.protocol.chat_request import Message
from app.protocol.settings import ApiSettings
from app.text.tokenizer import Tokenizer
from engine.errors import InvalidRequest, PromptTooLong
from engine.types import IntColumn, int32

# beyond this many characters, tokenising takes much longer than handing the work to a thread
_MAX_INLINE_LEN = 4096
MAX_BAD_SEQUENCES = 128
MAX_BAD_TOKENS = 1024

ResultT = TypeVar("ResultT")


class PromptEncoder:
    """Tokenises and checks the prompts of requests."""

    def __init__(self, tokenizer: Tokenizer, settings: ApiSettings) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = settings.max_model_len
        self._vocab_size = settings.vocab_size
        # the embedding may have rows that no token of the tokenizer has; they are never chosen
        self._num_choosable = min(settings.vocab_size, len(tokenizer.vocabulary))

    async def encode(
        self, prompts: Sequence[tuple[str, str | list[int]]], *, add_special_tokens: bool
    ) -> list[IntColumn]:
        """Encode prompts, each given as text or ids with its name in the request.

        Raises:
            InvalidRequest: if an id is no token of the model.
            PromptTooLong: if a text is too long for the context, however it is tokenised.
        """
        num_characters = 0
        for name, content in prompts:
            if isinstance(content, str):
                self._check_length(name, len(content))
                num_characters += len(content)
            else:
                self.check_ids(name, content)
        return await _off_the_loop(
            num_characters,
            lambda: [self._encode(content, add_special_tokens) for _, content in prompts],
        )

    async def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool
    ) -> IntColumn:
        """Render and encode a conversation.

        Raises:
            InvalidRequest: if the chat template refuses it, or the model has none.
            PromptTooLong: see `encode`.
        """
        rendered = [message.for_template() for message in messages]
        num_characters = sum(len(message["content"]) for message in rendered)
        self._check_length("messages", num_characters)
        return await _off_the_loop(
            num_characters,
            lambda: self._tokenizer.encode_chat(
                rendered, add_generation_prompt=add_generation_prompt
            ),
        )

    def check_ids(self, name: str, ids: Sequence[int], *, choosable: bool = False) -> None:
        """Refuse ids that are no tokens of the model.

        Args:
            choosable: refuse also those that the model never says.

        Raises:
            InvalidRequest: naming the first of them.
        """
        limit = self._num_choosable if choosable else self._vocab_size
        if not ids or (min(ids) >= 0 and max(ids) < limit):
            return
        at = next(i for i, token in enumerate(ids) if not 0 <= token < limit)
        raise InvalidRequest(
            f"{name}[{at}] is no token of the model, whose ids lie in [0, {limit})",
            param=f"{name}[{at}]",
        )

    def check_keys(self, name: str, keys: Iterable[str]) -> None:
        """Like `check_ids`, for ids that are the keys of a field."""
        if any(int(key) >= self._vocab_size for key in keys):
            raise InvalidRequest(
                f"{name} has a key that is no token of the model, whose ids lie in "
                f"[0, {self._vocab_size})",
                param=name,
            )

    async def encode_bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Encode words that must not be said, each as the first of a text and after a space.

        Raises:
            InvalidRequest: if there are too many tokens.
        """
        stems = [word.lstrip(" ") for word in words]
        spellings = [text for stem in stems for text in (stem, f" {stem}") if text]
        sequences = await _off_the_loop(
            sum(map(len, spellings)),
            lambda: {tuple(self._tokenizer.encode(s, add_special_tokens=False)) for s in spellings},
        )
        num_tokens = sum(map(len, sequences))
        if len(sequences) > MAX_BAD_SEQUENCES or num_tokens > MAX_BAD_TOKENS:
            raise InvalidRequest(
                f"bad_words has {num_tokens} tokens in {len(sequences)} sequences (with and "
                f"without a space in front), at most {MAX_BAD_TOKENS} in {MAX_BAD_SEQUENCES} are "
                "allowed",
                param="bad_words",
            )
        return tuple(sorted(sequence for sequence in sequences if sequence))

    def room(self, name: str, ids: IntColumn, *, needed: int = 1) -> int:
        """Return how many tokens fit behind a prompt, at least as many as needed.

        Raises:
            InvalidRequest: if the prompt has no tokens.
            PromptTooLong: if there is not enough room.
        """
        if not ids:
            raise InvalidRequest(f"{name} has no tokens", param=name)
        room = self._max_model_len - len(ids)
        if room < needed:
            raise self._too_long(name, len(ids), "")
        return room

    def _encode(self, content: str | list[int], add_special_tokens: bool) -> IntColumn:
        if isinstance(content, str):
            return self._tokenizer.encode(content, add_special_tokens=add_special_tokens)
        return int32(content)

    def _check_length(self, name: str, num_characters: int) -> None:
        least = self._tokenizer.min_tokens(num_characters)
        # a prompt without output may fill the context; `room` knows whether there is to be some
        if least > self._max_model_len:
            raise self._too_long(name, least, "at least ")

    def _too_long(self, name: str, got: int, at_least: str) -> PromptTooLong:
        return PromptTooLong(
            f"the model's context is {self._max_model_len} tokens, but {name} has "
            f"{at_least}{got} tokens, which leaves no room for output",
            param=name,
            limit=self._max_model_len,
            got=got,
        )


async def _off_the_loop(num_characters: int, work: Callable[[], ResultT]) -> ResultT:
    if num_characters <= _MAX_INLINE_LEN:
        return work()
    return await asyncio.to_thread(work)
