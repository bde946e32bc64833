"""Turns prompts into token ids within the model's limits, without holding up the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from app.protocol.chat_request import Message
from app.protocol.settings import ApiSettings
from app.text.tokenizer import Tokenizer
from engine.errors import InvalidRequest, PromptTooLong
from engine.types import IntColumn, int32

# beyond this many characters, tokenising takes much longer than handing the work to a thread
_MAX_INLINE_LEN = 4096

ResultT = TypeVar("ResultT")


class PromptEncoder:
    """Tokenises and checks the prompts of requests."""

    def __init__(self, tokenizer: Tokenizer, settings: ApiSettings) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = settings.max_model_len
        self._vocab_size = settings.vocab_size

    async def encode(
        self, prompts: Sequence[tuple[str, str | list[int]]], *, add_special_tokens: bool
    ) -> list[IntColumn]:
        """Encode prompts, each given as text or ids with its name in the request.

        Raises:
            InvalidRequest: if an id is no token of the model, or a prompt has no tokens.
            PromptTooLong: if a prompt leaves no room for one token.
        """
        num_characters = 0
        for name, content in prompts:
            if isinstance(content, str):
                self._check_length(name, len(content))
                num_characters += len(content)
            else:
                self._check_room(name, len(content))
                self.check_ids(name, content)
        return await _off_the_loop(
            num_characters,
            lambda: [self._encode(*prompt, add_special_tokens) for prompt in prompts],
        )

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> IntColumn:
        """Encode a text for its own sake; it may be empty or fill the context.

        Raises:
            PromptTooLong: if it is too long for the context, however it is tokenised.
        """
        self._check_length("prompt", len(text))
        return await _off_the_loop(
            len(text),
            lambda: self._tokenizer.encode(text, add_special_tokens=add_special_tokens),
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

    def check_ids(self, name: str, ids: Sequence[int]) -> None:
        """Refuse ids that are no tokens of the model.

        Raises:
            InvalidRequest: naming the first of them.
        """
        if not ids or (min(ids) >= 0 and max(ids) < self._vocab_size):
            return
        at = next(i for i, token in enumerate(ids) if not 0 <= token < self._vocab_size)
        raise InvalidRequest(
            f"{name}[{at}] is no token of the model, whose ids lie in [0, {self._vocab_size})",
            param=f"{name}[{at}]",
        )

    def room(self, name: str, ids: IntColumn) -> int:
        """Return how many tokens fit behind a prompt, at least 1.

        Raises:
            InvalidRequest: if the prompt has no tokens.
            PromptTooLong: if there is no room.
        """
        if not ids:
            raise InvalidRequest(f"{name} has no tokens", param=name)
        self._check_room(name, len(ids))
        return self._max_model_len - len(ids)

    def _encode(self, name: str, content: str | list[int], add_special_tokens: bool) -> IntColumn:
        if not isinstance(content, str):
            return int32(content)
        ids = self._tokenizer.encode(content, add_special_tokens=add_special_tokens)
        # at once, so that the prompts behind one that is too long cost nothing
        self.room(name, ids)
        return ids

    def _check_length(self, name: str, num_characters: int) -> None:
        self._check_room(name, self._tokenizer.min_tokens(num_characters), "at least ")

    def _check_room(self, name: str, num_tokens: int, bound: str = "") -> None:
        if num_tokens < self._max_model_len:
            return
        raise PromptTooLong(
            f"the model's context is {self._max_model_len} tokens, but {name} has "
            f"{bound}{num_tokens} tokens, which leaves no room for output",
            param=name,
            limit=self._max_model_len,
            got=num_tokens,
        )


async def _off_the_loop(num_characters: int, work: Callable[[], ResultT]) -> ResultT:
    if num_characters <= _MAX_INLINE_LEN:
        return work()
    return await asyncio.to_thread(work)
