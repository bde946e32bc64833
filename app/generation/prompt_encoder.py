"""Turns prompts into token ids within the model's limits, without holding up the event loop."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from app.protocol.api_settings import ApiSettings
from app.protocol.chat_request import Message
from app.text.stop_pattern import StopPatternMaker
from app.text.tokenizer import Tokenizer
from engine.errors import InvalidRequest, PromptTooLong
from engine.types import IntColumn, StopPattern, int32

# beyond this many characters, tokenising takes much longer than handing the work to a thread
_MAX_INLINE_LEN = 4096
MAX_BAD_SEQUENCES = 128
MAX_BAD_TOKENS = 1024

ResultT = TypeVar("ResultT")


class PromptEncoder:
    """Tokenises and checks the prompts of requests.

    Attributes:
        vocabulary: of the tokenizer.
        max_model_len: longest prompt plus output in tokens.
    """

    def __init__(self, tokenizer: Tokenizer, settings: ApiSettings) -> None:
        self._tokenizer = tokenizer
        self._patterns = StopPatternMaker(tokenizer.vocabulary)
        self.max_model_len = settings.max_model_len
        self.vocabulary = tokenizer.vocabulary
        self._vocab_size = settings.vocab_size

    async def encode(
        self,
        prompts: Sequence[tuple[str, str | list[int]]],
        *,
        add_special_tokens: bool,
        min_output: int = 1,
    ) -> list[IntColumn]:
        """Encode prompts, each given as text or ids with its name in the request.

        Args:
            min_output: tokens that must fit behind each prompt.

        Raises:
            InvalidRequest: if an id is no token of the model, or a prompt has no tokens.
            PromptTooLong: if a prompt leaves too little room.
        """
        num_characters = 0
        for name, content in prompts:
            if isinstance(content, str):
                self._check_length(name, len(content), min_output)
                num_characters += len(content)
            else:
                self._check_room(name, len(content), min_output)
                self.check_ids(name, content)
        return await _off_the_loop(
            num_characters,
            lambda: [self._encode(*prompt, add_special_tokens, min_output) for prompt in prompts],
        )

    def stop_pattern(self, stops: Sequence[str], *, skip_special: bool) -> StopPattern:
        """Return the automaton by which the engine ends beams at stop strings."""
        return self._patterns.make(stops, skip_special=skip_special)

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> IntColumn:
        """Encode a text that is not to be continued; it may be empty or fill the context.

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
        limit = self._vocab_size
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
        """Encode words that must not be generated, each without and with a space in front.

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
        # the model cannot sample a token that its embedding has no row for
        return tuple(sorted(s for s in sequences if s and max(s) < self._vocab_size))

    def room(self, name: str, ids: IntColumn, *, min_output: int = 1) -> int:
        """Return how many tokens fit behind a prompt, at least `min_output`.

        Raises:
            InvalidRequest: if the prompt has no tokens, or one that the model does not have.
            PromptTooLong: if there is not enough room.
        """
        if not ids:
            raise InvalidRequest(f"{name} has no tokens", param=name)
        self._check_room(name, len(ids), min_output)
        # a tokenizer may know more tokens than the embedding has rows
        self.check_ids(name, ids)
        return self.max_model_len - len(ids)

    def _encode(
        self, name: str, content: str | list[int], add_special_tokens: bool, min_output: int
    ) -> IntColumn:
        if not isinstance(content, str):
            return int32(content)
        ids = self._tokenizer.encode(content, add_special_tokens=add_special_tokens)
        # checked here, so that prompts behind one that is too long are not tokenised
        self.room(name, ids, min_output=min_output)
        return ids

    def _check_length(self, name: str, num_characters: int, min_output: int = 1) -> None:
        self._check_room(name, self._tokenizer.min_tokens(num_characters), min_output, "at least ")

    def _check_room(self, name: str, num_tokens: int, min_output: int, bound: str = "") -> None:
        if num_tokens + min_output <= self.max_model_len:
            return
        raise PromptTooLong(
            f"the model's context is {self.max_model_len} tokens, but {name} has "
            f"{bound}{num_tokens} tokens, which leaves no room for output",
            param=name,
            limit=self.max_model_len,
            got=num_tokens,
        )


async def _off_the_loop(num_characters: int, work: Callable[[], ResultT]) -> ResultT:
    """Run `work` in a thread if its text is long, so that the event loop stays free."""
    if num_characters <= _MAX_INLINE_LEN:
        return work()
    return await asyncio.to_thread(work)
