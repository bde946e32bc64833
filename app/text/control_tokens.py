"""Keeps control tokens spelled inside a message apart from those that a chat template writes."""

import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any


class ControlTokens:
    """The spellings of a model's control tokens.

    Attributes:
        marks: what stands for the control tokens of a template while it is tokenised, by spelling;
            no client can guess one.
    """

    def __init__(self, spellings: Iterable[str]) -> None:
        nonce = secrets.token_hex(16)
        self.marks = {text: f"{nonce}-{index}-" for index, text in enumerate(spellings)}
        # the longest spelling wins where several begin at the same character
        longest_first = sorted(self.marks, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def disguise(self) -> "Disguise":
        """Return what hides the control tokens of one conversation."""
        return Disguise(self.marks, self._pattern)


class Disguise:
    """Hides control tokens spelled inside messages while a template is rendered.

    Ordinary messages pass unchanged, so that templates may trim or compare contents.
    """

    def __init__(self, marks: Mapping[str, str], pattern: re.Pattern[str]) -> None:
        self._marks = marks
        self._pattern = pattern
        self._hidden: list[str] = []
        self._nonce = secrets.token_hex(16)

    def hide(self, value: Any) -> Any:
        """Return a message, or another JSON value, with every spelled-out control token hidden."""
        if isinstance(value, str):
            return self._pattern.sub(self._hide, value)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(inner) for key, inner in value.items()}
        return [self.hide(inner) for inner in value] if isinstance(value, list | tuple) else value

    def mark(self, rendered: str) -> str:
        """Put marks for the template's control tokens, and show again what was hidden."""
        marked = self._pattern.sub(lambda match: self._marks[match[0]], rendered)
        if not self._hidden:
            return marked
        return re.sub(f"{self._nonce}-(\\d+)-", lambda match: self._hidden[int(match[1])], marked)

    def _hide(self, match: re.Match[str]) -> str:
        self._hidden.append(match[0])
        return f"{self._nonce}-{len(self._hidden) - 1}-"
