"""Text to token ids: plain prompts, and conversations through the model's chat template."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Backend

from app.text.chat_templates import DEFAULT, ChatTemplates, read_chat_templates
from app.text.control_tokens import ControlTokens
from app.text.json_text import ESCAPED, json_of
from app.text.template_options import TemplateOptions
from app.text.token_bound import ONE_TOKEN, bound_of
from app.text.vocabulary import Vocabulary
from engine.errors import ConfigError, InvalidRequest
from engine.integers import div_ceil
from engine.types import IntColumn, int32

PLAIN = TemplateOptions()


class Tokenizer:
    """The tokenizer of one model. Safe to use from several threads.

    Attributes:
        vocabulary: of all tokens.
        end_ids: tokens that end an answer as its files have it: the end of a text, and what the
            chat template writes behind an answer.

    Args:
        backend: from tokenizer.json.
        special_tokens: spellings by name (`bos_token`, ...), as the chat template sees them.
        chat_template: Jinja source, or sources by name, or None for a model without one.
    """

    def __init__(
        self,
        backend: Backend,
        special_tokens: Mapping[str, str],
        chat_template: str | Mapping[str, str] | None,
    ) -> None:
        # settings of training, which would cut or lengthen prompts without an error
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.vocabulary = Vocabulary(backend)
        self._control = ControlTokens(self.vocabulary.special_texts.values())
        self._bound = bound_of(backend, self.vocabulary)
        self._marked, self._ids_of_marked = _with_marks(backend, self._control.marks)
        self._bos_id = backend.token_to_id(special_tokens.get("bos_token", ""))
        if isinstance(chat_template, str):
            chat_template = {DEFAULT: chat_template}
        self._templates = ChatTemplates(chat_template or {}, special_tokens)
        self.end_ids = self._ends(special_tokens.get("eos_token", ""))

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read tokenizer.json, tokenizer_config.json and the chat templates of a model folder.

        Raises:
            ConfigError: if the tokenizer is missing, damaged or of a kind that is not supported.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(
                f"{folder} has no tokenizer.json; convert the tokenizer to that format"
            )
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises the bare class
            raise ConfigError(f"{path} cannot be read: {error}") from error
        config = _read_json(folder / "special_tokens_map.json")
        config |= _read_json(folder / "tokenizer_config.json")
        return cls(backend, _special_tokens(config), read_chat_templates(folder, config))

    @property
    def template_source(self) -> str:
        """The chat template, or nothing for a model without one."""
        template = self._templates.default
        return "" if template is None else template.source

    def to_json(self) -> str:
        """Return what tokenizer.json says, for libraries that read it themselves."""
        text: str = self._backend.to_str()
        return text

    def min_tokens(self, num_characters: int) -> int:
        """Return a lower bound of the number of tokens of a text of this length."""
        return div_ceil(num_characters, self.vocabulary.longest_piece)

    def at_least(self, text: str, enough: int) -> int:
        """Return a number of tokens that a text, or a rendered conversation, has at least.

        Most often it is nine tenths of them or more, see `TokenBound`; 0 for a tokenizer that may
        lose a part of a text.

        Args:
            enough: the rest of a text is not looked at once as many are found.
        """
        if self._bound is None:
            return 0
        if self.vocabulary.space is not None:
            text = text.replace(self.vocabulary.space, " ")
        data = self._control.pattern_of_marks.sub(ONE_TOKEN, text.encode())
        # of two leading BOS one is dropped
        return max(self._bound.at_least(data, enough + 1) - 1, 0)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> IntColumn:
        """Encode a text; it may spell control tokens, and a second leading BOS is dropped."""
        ids = _encode(self._backend, text, add_special_tokens=add_special_tokens)
        return self._with_one_bos(ids)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], options: TemplateOptions = PLAIN
    ) -> IntColumn:
        """Render and encode a conversation, see `render_chat` and `encode_rendered`."""
        rendered = self.render_chat(messages, options)
        return self.encode_rendered(rendered, add_special_tokens=options.add_special_tokens)

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], options: TemplateOptions = PLAIN
    ) -> str:
        """Render a conversation; control tokens spelled inside messages stay plain text.

        Returns:
            The text, with a mark for each control token that the template has written.

        Raises:
            InvalidRequest: if the model has no chat template or its template refuses the messages.
        """
        template = self._templates.choose(
            has_tools=bool(options.tools), has_documents=bool(options.variables.get("documents"))
        )
        if template is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions")
        disguise = self._control.disguise()
        text = template.render(
            disguise.hide(messages),
            replace(
                options,
                tools=disguise.hide(options.tools),
                variables=disguise.hide(options.variables),
            ),
        )
        return disguise.mark(text)

    def encode_rendered(self, rendered: str, *, add_special_tokens: bool = False) -> IntColumn:
        """Encode what `render_chat` has returned.

        It is tokenised in one piece, so that what one message spells does not change the tokens of
        another, whatever the tokenizer does at the beginning of a text.
        """
        ids = _encode(self._marked, rendered, add_special_tokens=False)
        ids = [self._ids_of_marked.get(id, id) for id in ids]
        if add_special_tokens:
            ids = _encode(self._backend, "", add_special_tokens=True) + ids
        return self._with_one_bos(ids)

    @property
    def may_lose_text(self) -> bool:
        """Whether there are characters that no token holds, see `first_lost`."""
        return self.vocabulary.lost_bytes is None or bool(self.vocabulary.lost_bytes)

    def keeps(self, value: Any) -> bool:
        """Whether no text in a JSON value loses a character; seen at once, else maybe False."""
        if not self.may_lose_text:
            return True
        lost_bytes = self.vocabulary.lost_bytes
        if lost_bytes is None or self._backend.normalizer is not None:
            return False
        data = json_of(value)
        if data is None or ESCAPED in data:
            return False
        return len(data.translate(None, lost_bytes)) == len(data)

    def first_lost(self, text: str) -> str | None:
        """Return the first character that no token holds, or None.

        What the normaliser makes of a text counts as held, and so does white space, which some
        tokenizers only cut at.
        """
        lost_bytes = self.vocabulary.lost_bytes
        if lost_bytes is None:
            return self._first_unknown(text)
        if not self.may_lose_text:
            return None
        normal = self._backend.normalizer.normalize_str(text) if self._backend.normalizer else text
        lost = frozenset(lost_bytes)
        data = normal.encode()
        # most often nothing is lost, which this sees at once
        if len(data.translate(None, lost_bytes)) == len(data):
            return None
        return next(character for character in normal if not lost.isdisjoint(character.encode()))

    def parts(self, text: str, *, add_special_tokens: bool) -> list[str]:
        """Cut a text into what each of its tokens stands for; joined they are the text itself.

        A character of several tokens is the last one's; tokens that the tokenizer adds have none.
        """
        encoding = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        spans = _spans(encoding)[len(encoding.ids) - len(self._with_one_bos(encoding.ids)) :]
        wide = [index for index, (start, end) in enumerate(spans) if start < end]
        parts, cut = [""] * len(spans), 0
        for index, following in pairwise(wide):
            end = max(cut, min(spans[index][1], spans[following][0]))
            parts[index], cut = text[cut:end], end
        if parts:
            parts[wide[-1] if wide else -1] = text[cut:]
        return parts

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Return the text of token ids that begin a text of their own."""
        pieces = self.vocabulary.pieces
        skipped = self.vocabulary.special_ids if skip_special else frozenset()
        known = [token for token in ids if token < len(pieces) and token not in skipped]
        # as `Detokenizer` does it token by token
        text = b"".join([pieces[token] for token in known]).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.vocabulary.drops_first_space else text

    def _first_unknown(self, text: str) -> str | None:
        """See `first_lost`, for a tokenizer of characters: what is skipped or unknown is lost."""
        lost = self._unknown_part(text)
        if not lost:
            return None
        # behind a character that is skipped the spans are wrong, so each is looked at
        single = (character for character in dict.fromkeys(text) if self._unknown_part(character))
        return next(single, lost[0])

    def _ends(self, eos_token: str) -> tuple[int, ...]:
        ends = [self._backend.token_to_id(eos_token)]
        if self._templates.default is not None:
            behind = self._templates.default.end_of_answer().lstrip()
            first = _encode(self._backend, behind, add_special_tokens=False)[:1]
            added = self._backend.get_added_tokens_decoder()
            ends += [token for token in first if token in added]
        return tuple(dict.fromkeys(token for token in ends if token is not None))

    def _unknown_part(self, text: str) -> str:
        """Text that some token does not stand for, or nothing."""
        encoding = self._backend.encode_batch([text], add_special_tokens=False)[0]
        unknown = getattr(self._backend.model, "unk_token", None)
        end = 0
        for token, (start, stop) in zip(encoding.tokens, _spans(encoding), strict=True):
            is_lost = token == unknown != text[start:stop]
            if lost := (text[end:start] + text[start:stop] * is_lost).strip():
                return lost
            end = max(end, stop)
        return text[end:].strip()

    def _with_one_bos(self, ids: list[int]) -> IntColumn:
        return int32(ids[1:] if ids[:2] == [self._bos_id, self._bos_id] else ids)


def _spans(encoding: Encoding) -> list[tuple[int, int]]:
    """Characters [start, end) of the text that each token stands for; none for added ones."""
    return [encoding.token_to_chars(index) or (0, 0) for index in range(len(encoding))]


def _with_marks(backend: Backend, marks: Mapping[str, str]) -> tuple[Backend, dict[int, int]]:
    """Make a tokenizer that finds marks in a text and no control tokens; it shares the model.

    Returns:
        The tokenizer, and the ids of the backend by those of its added tokens.
    """
    marked = Backend(backend.model)
    if backend.normalizer is not None:
        marked.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        marked.pre_tokenizer = backend.pre_tokenizer
    added = backend.get_added_tokens_decoder()
    texts = {id: marks.get(token.content, token.content) for id, token in added.items()}
    marked.add_tokens(
        [
            AddedToken(
                texts[id],
                # a mark must be found wherever the template has the token
                single_word=token.single_word and not token.special,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized and not token.special,
                special=token.special,
            )
            for id, token in added.items()
        ]
    )
    ids = {marked.token_to_id(text): id for id, text in texts.items()}
    return marked, {new: id for new, id in ids.items() if new is not None}


def _encode(backend: Backend, text: str, *, add_special_tokens: bool) -> list[int]:
    # the batch call gives the interpreter lock back while it works, the single one does not
    return backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return content


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Pick the named tokens; each is a string or an object with the string as `content`."""
    tokens = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens
