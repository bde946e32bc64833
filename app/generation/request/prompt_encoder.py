"""Turns prompts into token ids within the model's limits, without holding up the event loop."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from app.generation.request.cut import WHOLE, Cut
from app.grammars.grammar_compiler import GrammarCompiler
from app.limits import MAX_BAD_SEQUENCES, MAX_BAD_TOKENS
from app.protocol.api_settings import ApiSettings
from app.protocol.chat.messages import Message
from app.protocol.strict import is_plain
from app.text.offload import Offload
from app.text.reply.formats import ReplyStyle
from app.text.reply.history import for_template
from app.text.stops.stop_pattern import StopPatternMaker
from app.text.template_options import TemplateOptions
from app.text.tokenizer import Tokenizer
from engine.errors import InvalidRequest, PromptTooLong
from engine.types import IntColumn, StopPattern, int32

# characters for each token of the context: from how many on a text is looked at, and how many of it
_BEGINNINGS = ((6, 3), (12, 6))
# tokens
_SLACK = 64
# characters that take as long to tokenise as a message takes beside its content
_MESSAGE_SIZE = 16
DEFAULT_OPTIONS = TemplateOptions()


def texts_in(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield every text in a JSON value, keys too, with its name in the request."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield name, key
            yield from texts_in(f"{name}.{key}" if is_plain(key) else name, inner)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from texts_in(f"{name}[{index}]", inner)


class PromptEncoder:
    """Tokenises and checks the prompts of requests.

    Attributes:
        vocabulary: of the tokenizer.
        max_model_len: longest prompt plus output in tokens.
        eos_token_ids: ids at which the model ends an answer.
        vocab_size: ids that the model can choose.
        max_answer_items: see `app.limits.MAX_ANSWER_ITEMS`.
        offload: for work that grows with the request.
        style: how the model's replies are to be read.
        grammars: compiles what answers must match.
    """

    def __init__(self, tokenizer: Tokenizer, settings: ApiSettings, offload: Offload) -> None:
        self._tokenizer = tokenizer
        self.offload = offload
        self.style = ReplyStyle.of(
            tokenizer.template_source, settings.tool_call_format, settings.reasoning_format
        )
        self._patterns = StopPatternMaker(tokenizer.vocabulary)
        self.max_model_len = settings.max_model_len
        self.vocabulary = tokenizer.vocabulary
        self.eos_token_ids = settings.eos_token_ids
        self.vocab_size = settings.vocab_size
        self.max_answer_items = settings.max_answer_items
        self.grammars = GrammarCompiler(tokenizer.to_json, settings.eos_token_ids)

    async def encode(
        self,
        prompts: Sequence[tuple[str, str | list[int]]],
        *,
        add_special_tokens: bool,
        min_output: int = 1,
        cut: Cut = WHOLE,
    ) -> list[IntColumn]:
        """Encode prompts, each given as text or ids with its name in the request.

        Args:
            min_output: tokens that must fit behind each prompt.
            cut: what is kept of each prompt.

        Raises:
            InvalidRequest: if an id is no token of the model, or a prompt has no tokens.
            PromptTooLong: if a prompt leaves too little room.
        """
        num_characters = 0
        for name, content in prompts:
            if isinstance(content, str):
                if cut is WHOLE:
                    self._check_length(name, len(content), min_output)
                num_characters += len(content)
            else:
                if cut is WHOLE:
                    self._check_room(name, len(content), min_output)
                self.check_ids(name, content)
        encode = partial(
            self._encode, add_special_tokens=add_special_tokens, min_output=min_output, cut=cut
        )
        return await self.offload.run(
            num_characters, lambda: [encode(*prompt) for prompt in prompts]
        )

    async def parts(self, text: str, *, add_special_tokens: bool) -> tuple[str, ...]:
        """Cut a text into the parts of its tokens; see `Tokenizer.parts`."""
        return await self.offload.run(
            len(text),
            lambda: tuple(self._tokenizer.parts(text, add_special_tokens=add_special_tokens)),
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, control tokens included."""
        return self._tokenizer.decode(ids)

    def check_text(self, name: str, text: str) -> None:
        """Refuse a text of which the tokens would lose a character.

        Raises:
            InvalidRequest: naming the first such character.
        """
        lost = self._tokenizer.first_lost(text)
        if lost is not None:
            raise InvalidRequest(
                f"{name} has the character U+{ord(lost):04X}, for which the model has no token",
                param=name,
            )

    async def stop_pattern(
        self, stops: Sequence[str], *, skip_special: bool, min_tokens: int
    ) -> StopPattern:
        """Return the automaton by which the engine ends beams at stop strings."""
        return await self.offload.run(
            # each stop string is compared with every token
            len(stops) * len(self.vocabulary),
            lambda: self._patterns.make(stops, skip_special=skip_special, min_tokens=min_tokens),
        )

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> IntColumn:
        """Encode a text that is not to be continued; it may be empty or fill the context.

        Raises:
            PromptTooLong: if it is too long for the context, however it is tokenised.
        """
        self._check_length("prompt", len(text))
        return await self.offload.run(
            len(text), partial(self._encode_whole, text, add_special_tokens=add_special_tokens)
        )

    async def encode_chat(
        self,
        messages: Sequence[Message],
        options: TemplateOptions = DEFAULT_OPTIONS,
        cut: Cut = WHOLE,
        min_output: int | None = None,
    ) -> IntColumn:
        """Render and encode a conversation, with the tools that may be called.

        Args:
            min_output: tokens that must fit behind it; None if it may be longer than the context.

        Raises:
            InvalidRequest: if the chat template refuses it, the model has none, or no tokens for a
                character.
            PromptTooLong: if it leaves too little room, most often before it is tokenised, or is
                too long however it is tokenised.
        """
        shown = [message.for_template() for message in messages]
        num_characters = sum(len(message["content"]) for message in shown)
        if cut is WHOLE:
            self._check_length("messages", num_characters)
        num_others = sum(
            len(text) for _, text in texts_in("", [m.get("tool_calls") for m in shown])
        )
        num_others += sum(len(text) for _, text in texts_in("", options.tools))
        limit = None if cut is not WHOLE else min_output
        return await self.offload.run(
            num_characters + num_others + _MESSAGE_SIZE * len(shown),
            lambda: cut.apply(self._encode_chat(shown, options, limit)),
        )

    def check_ids(self, name: str, ids: Sequence[int]) -> None:
        """Refuse ids that are no tokens of the model.

        Raises:
            InvalidRequest: naming the first of them.
        """
        limit = self.vocab_size
        if not ids or (min(ids) >= 0 and max(ids) < limit):
            return
        at = next(i for i, token in enumerate(ids) if not 0 <= token < limit)
        raise InvalidRequest(
            f"{name}[{at}] is no token of the model, whose ids lie in [0, {limit})",
            param=f"{name}[{at}]",
        )

    def check_keys(self, name: str, keys: Iterable[str]) -> None:
        """Like `check_ids`, for ids that are the keys of a field."""
        if any(int(key) >= self.vocab_size for key in keys):
            raise InvalidRequest(
                f"{name} has a key that is no token of the model, whose ids lie in "
                f"[0, {self.vocab_size})",
                param=name,
            )

    async def encode_bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Encode words that must not be generated, each without and with a space in front.

        Raises:
            InvalidRequest: if there are too many tokens, or none for a word.
        """
        found = await self.offload.run(
            sum(map(len, words)),
            lambda: [self._encode_bad_word(f"bad_words[{i}]", w) for i, w in enumerate(words)],
        )
        sequences = set[tuple[int, ...]]().union(*found)
        num_tokens = sum(map(len, sequences))
        if len(sequences) > MAX_BAD_SEQUENCES or num_tokens > MAX_BAD_TOKENS:
            raise InvalidRequest(
                f"bad_words has {num_tokens} tokens in {len(sequences)} sequences (with and "
                f"without a space in front), at most {MAX_BAD_TOKENS} in {MAX_BAD_SEQUENCES} are "
                "allowed",
                param="bad_words",
            )
        # the model cannot sample a token that its embedding has no row for
        return tuple(sorted(s for s in sequences if max(s) < self.vocab_size))

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
        self,
        name: str,
        content: str | list[int],
        *,
        add_special_tokens: bool,
        min_output: int,
        cut: Cut,
    ) -> IntColumn:
        if not isinstance(content, str):
            return cut.apply(int32(content))
        if cut is WHOLE:
            self._check_bound(name, content, min_output)
            self._check_beginning(name, content, min_output)
        ids = cut.apply(self._encode_text(name, content, add_special_tokens))
        # checked here, so that prompts behind one that is too long are not tokenised
        self.room(name, ids, min_output=min_output)
        return ids

    def _encode_whole(self, text: str, *, add_special_tokens: bool) -> IntColumn:
        self._check_beginning("prompt", text, 0)
        return self._encode_text("prompt", text, add_special_tokens)

    def _encode_text(self, name: str, text: str, add_special_tokens: bool) -> IntColumn:
        self.check_text(name, text)
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _encode_chat(
        self,
        shown: Sequence[dict[str, Any]],
        options: TemplateOptions,
        min_output: int | None,
    ) -> IntColumn:
        if not self._tokenizer.keeps([shown, options.tools]):
            for field, value in (("messages", shown), ("tools", options.tools)):
                for name, text in texts_in(field, value):
                    self.check_text(name, text)
        messages, tools = for_template(shown, options.tools, self.style.calls)
        rendered = self._tokenizer.render_chat(messages, replace(options, tools=tools))
        if min_output is not None:
            self._check_bound("messages", rendered, min_output)
        return self._tokenizer.encode_rendered(
            rendered, add_special_tokens=options.add_special_tokens
        )

    def _encode_bad_word(self, name: str, word: str) -> set[tuple[int, ...]]:
        self.check_text(name, word)
        stem = word.lstrip(" ")
        spellings = [text for text in (stem, f" {stem}") if text]
        found = {tuple(self._tokenizer.encode(s, add_special_tokens=False)) for s in spellings}
        if found == {()}:
            raise InvalidRequest(f"{name} has no tokens", param=name)
        return found - {()}

    def _check_length(self, name: str, num_characters: int, min_output: int = 1) -> None:
        self._check_room(name, self._tokenizer.min_tokens(num_characters), min_output, "at least ")

    def _check_bound(self, name: str, text: str, min_output: int) -> None:
        """Refuse a text that is seen to be too long without tokenising it."""
        least = self._tokenizer.at_least(text, self.max_model_len + 1)
        self._check_room(name, least, min_output, "at least ")

    def _check_beginning(self, name: str, text: str, min_output: int) -> None:
        """Refuse a text of which a part fills the context by far, without tokenising the rest.

        What follows a beginning changes how its last words are cut, and no more than `_SLACK`.
        """
        for most, num_looked_at in _BEGINNINGS:
            if len(text) >= most * self.max_model_len:
                beginning = text[: num_looked_at * self.max_model_len]
                count = len(self._tokenizer.encode(beginning, add_special_tokens=False))
                least = count - count // 8 - _SLACK
                self._check_room(name, least, min_output, "at least ")

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
