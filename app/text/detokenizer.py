"""Turns a stream of tokens into text that never shows half a character."""

import codecs
import copy

from app.text.vocabulary import Vocabulary


class Detokenizer:
    """Text of one sequence, token by token.

    The joined results of `push` and `finish` are the UTF-8 decoding of all bytes at once, where
    every maximal invalid part becomes one U+FFFD.

    Args:
        skip_special: leave control tokens out.
        kept: ids of those that stay all the same.
        starts_text: whether the first token begins a text of its own, rather than going on with
            one, so that the space that some tokenizers put before a first word is dropped.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        skip_special: bool,
        starts_text: bool,
        kept: frozenset[int] = frozenset(),
    ) -> None:
        self._pieces = vocabulary.pieces
        self._skipped = vocabulary.special_ids - kept if skip_special else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_space = starts_text and vocabulary.drops_first_space

    def push(self, token: int) -> str:
        """Return the characters that became complete with this token, if any."""
        if token in self._skipped or token >= len(self._pieces):
            return ""
        return self._emit(self._decoder.decode(self._pieces[token]))

    def fork(self) -> "Detokenizer":
        """Return another one that goes on from the same text."""
        twin = copy.copy(self)
        twin._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        twin._decoder.setstate(self._decoder.getstate())
        return twin

    @property
    def is_complete(self) -> bool:
        """Whether no character is incomplete."""
        return not self._decoder.getstate()[0]

    def finish(self) -> str:
        """Return what an incomplete last character decodes to."""
        return self._emit(self._decoder.decode(b"", final=True))

    def _emit(self, text: str) -> str:
        if self._drops_space and text:
            self._drops_space = False
            return text.removeprefix(" ")
        return text
