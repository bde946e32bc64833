"""Keeps control tokens spelled inside a message apart from those that a chat template writes."""

import re
import secrets
from collections.abc import Iterator, Mapping


class ControlTokens:
    """The control tokens of a model by their spelling."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        self._ids = {text: id for id, text in texts.items()}
        # the longest spelling wins where several begin at the same character
        spellings = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, spellings)) or "(?!)")

    def disguise(self) -> "Disguise":
        """Return what hides the control tokens of one conversation."""
        return Disguise(self._ids, self._pattern)


class Disguise:
    """Hides control tokens spelled inside messages while a template is rendered.

    Ordinary messages pass unchanged, so that templates may trim or compare contents. A spelled-out
    control token is replaced by an unguessable mark and comes back as plain text after the
    template's own control tokens have been cut out.
    """

    def __init__(self, ids: Mapping[str, int], pattern: re.Pattern[str]) -> None:
        self._ids = ids
        self._pattern = pattern
        self._hidden: list[str] = []
        self._nonce = secrets.token_hex(16)

    @property
    def is_used(self) -> bool:
        """Whether anything had to be hidden."""
        return bool(self._hidden)

    def message(self, message: Mapping[str, str]) -> dict[str, str]:
        """Return the message with every spelled-out control token hidden."""
        return {key: self._pattern.sub(self._hide, value) for key, value in message.items()}

    def split(self, rendered: str) -> Iterator[tuple[str, int | None]]:
        """Cut a rendered text into (plain text, None) and (spelling, id) of template tokens."""
        start = 0
        for match in self._pattern.finditer(rendered):
            if match.start() > start:
                yield self._reveal(rendered[start : match.start()]), None
            yield match[0], self._ids[match[0]]
            start = match.end()
        if start < len(rendered):
            yield self._reveal(rendered[start:]), None

    def _hide(self, match: re.Match[str]) -> str:
        self._hidden.append(match[0])
        return f"{self._nonce}-{len(self._hidden) - 1}-"

    def _reveal(self, text: str) -> str:
        return re.sub(f"{self._nonce}-(\\d+)-", lambda match: self._hidden[int(match[1])], text)
