"""Keeps control tokens spelled inside a message apart from those that a chat template writes."""

import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from app.text.json_text import json_of, stands_as_it_is


class ControlTokens:
    """The spellings of a model's control tokens.

    Attributes:
        marks: what stands for the control tokens of a template while it is tokenised, by spelling;
            no client can guess one.
        pattern_of_marks: finds them in UTF-8.
    """

    def __init__(self, spellings: Iterable[str]) -> None:
        nonce = secrets.token_hex(16)
        self.marks = {text: f"{nonce}-{index}-" for index, text in enumerate(spellings)}
        self.pattern_of_marks = re.compile(f"{nonce}-[0-9]+-".encode())
        # the longest spelling wins where several begin at the same character
        longest_first = sorted(self.marks, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._in_json = None
        if all(map(stands_as_it_is, self.marks)):
            self._in_json = re.compile(self._pattern.pattern.encode())

    def disguise(self) -> "Disguise":
        """Return what hides the control tokens of one conversation."""
        return Disguise(self.marks, self._pattern, self._in_json)


class Disguise:
    """Hides control tokens spelled inside messages while a template is rendered.

    Ordinary messages pass unchanged, so that templates may trim or compare contents.

    Args:
        marks: see `ControlTokens`.
        pattern: finds control tokens in a text.
        in_json: finds them in JSON, if they stand there as they are.
    """

    def __init__(
        self,
        marks: Mapping[str, str],
        pattern: re.Pattern[str],
        in_json: re.Pattern[bytes] | None,
    ) -> None:
        self._marks = marks
        self._pattern = pattern
        self._in_json = in_json
        self._hidden: list[str] = []
        self._nonce = secrets.token_hex(16)

    def hide(self, value: Any) -> Any:
        """Return a message, or another JSON value, with every spelled-out control token hidden."""
        # most often there is none, which a search in all texts together sees much sooner
        data = None if self._in_json is None else json_of(value)
        if data is not None and self._in_json is not None and not self._in_json.search(data):
            return value
        return self._hidden_in(value)

    def mark(self, rendered: str) -> str:
        """Put marks for the template's control tokens, and show again what was hidden."""
        marked = self._pattern.sub(lambda match: self._marks[match[0]], rendered)
        if not self._hidden:
            return marked
        return re.sub(f"{self._nonce}-(\\d+)-", lambda match: self._hidden[int(match[1])], marked)

    def _hidden_in(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._pattern.sub(self._hide, value)
        if isinstance(value, Mapping):
            return {self._hidden_in(k): self._hidden_in(inner) for k, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._hidden_in(inner) for inner in value]
        return value

    def _hide(self, match: re.Match[str]) -> str:
        self._hidden.append(match[0])
        return f"{self._nonce}-{len(self._hidden) - 1}-"
