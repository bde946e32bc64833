"""Text to token ids: plain prompts, and conversations through the model's chat template."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from app.text.chat_template import ChatTemplate
from app.text.control_tokens import ControlTokens
from app.text.detokenizer import Detokenizer
from app.text.vocabulary import Vocabulary
from engine.errors import ConfigError, InvalidRequest
from engine.integers import div_ceil
from engine.types import IntColumn, int32


class Tokenizer:
    """The tokenizer of one model. Safe to use from several threads.

    Attributes:
        vocabulary: of all tokens.
        end_ids: tokens that end an answer as its files have it: the end of a text, and what the
            chat template writes behind an answer.

    Args:
        backend: from tokenizer.json.
        special_tokens: spellings by name (`bos_token`, ...), as the chat template sees them.
        chat_template: Jinja source, or None for a model without one.
    """

    def __init__(
        self, backend: Backend, special_tokens: Mapping[str, str], chat_template: str | None
    ) -> None:
        # settings of training, which would cut or lengthen prompts without an error
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._plain = _without_control_tokens(backend)
        self.vocabulary = Vocabulary(backend)
        self._control = ControlTokens(self.vocabulary.special_texts)
        self._bos_id = backend.token_to_id(special_tokens.get("bos_token", ""))
        self._template = (
            None if chat_template is None else ChatTemplate(chat_template, special_tokens)
        )
        self.end_ids = self._ends(special_tokens.get("eos_token", ""))

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read tokenizer.json, tokenizer_config.json and chat_template.jinja of a model folder.

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
        return cls(backend, _special_tokens(config), _chat_template(folder, config))

    def min_tokens(self, num_characters: int) -> int:
        """Return a lower bound of the number of tokens of a text of this length."""
        return div_ceil(num_characters, self.vocabulary.longest_piece)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> IntColumn:
        """Encode a text; it may spell control tokens, and a second leading BOS is dropped."""
        ids = _encode(self._backend, text, add_special_tokens=add_special_tokens)
        if ids[:2] == [self._bos_id, self._bos_id]:
            ids = ids[1:]
        return int32(ids)

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> IntColumn:
        """Render and encode a conversation; control tokens spelled inside messages stay plain text.

        Raises:
            InvalidRequest: if the model has no chat template or its template refuses the messages.
        """
        if self._template is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions")
        disguise = self._control.disguise()
        text = self._template.render(
            [disguise.message(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
        )
        if not disguise.is_used:
            return self.encode(text, add_special_tokens=False)
        ids = []
        for piece, control_id in disguise.split(text):
            if control_id is None:
                ids += _encode(self._plain, piece, add_special_tokens=False)
            else:
                ids.append(control_id)
        return int32(ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Return the text of token ids that begin a text of their own."""
        detokenizer = Detokenizer(self.vocabulary, skip_special=skip_special, starts_text=True)
        return "".join(map(detokenizer.push, ids)) + detokenizer.finish()

    def _ends(self, eos_token: str) -> tuple[int, ...]:
        ends = [self._backend.token_to_id(eos_token)]
        if self._template is not None:
            behind = self._template.end_of_answer().lstrip()
            first = _encode(self._backend, behind, add_special_tokens=False)[:1]
            added = self._backend.get_added_tokens_decoder()
            ends += [token for token in first if token in added]
        return tuple(dict.fromkeys(token for token in ends if token is not None))


def _without_control_tokens(backend: Backend) -> Backend:
    """Make a tokenizer that finds no added tokens in a text; it shares the vocabulary's memory."""
    plain = Backend(backend.model)
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    return plain


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


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {option["name"]: option["template"] for option in template}
        template = named.get("default")
    return template
