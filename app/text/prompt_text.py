"""What an answer repeats of its prompt: its text, and the log-probabilities of its tokens."""

from collections.abc import Sequence
from dataclasses import replace

from app.text.choice_text import TextDelta, TokenLogprob
from app.text.detokenizer import Detokenizer
from app.text.text_options import TextOptions
from app.text.vocabulary import Vocabulary
from engine.runtime.protocol import Delta


class PromptText:
    """The prompt of one or more choices, and its log-probabilities as the engine reports them.

    Args:
        ids: int32 token ids.
        text: the prompt as the client wrote it, or None where it gave ids.
    """

    def __init__(
        self, vocabulary: Vocabulary, options: TextOptions, ids: Sequence[int], text: str | None
    ) -> None:
        self._options = options
        pieces = _pieces(vocabulary, ids, text) if options.echo else [""] * len(ids)
        self.text = "".join(pieces)
        self._opening: TextDelta | None = None
        self._scored: list[TokenLogprob] = []
        self._unscored: list[TokenLogprob] = []
        if options.num_scored is not None:
            self._unscored = _unscored(ids, pieces)
            # nothing predicts the first token
            self._scored.append(self._unscored.pop())

    @property
    def num_missing(self) -> int:
        """Tokens whose log-probability the engine has not reported yet."""
        return len(self._unscored)

    def push(self, delta: Delta) -> None:
        """Take log-probabilities of the next tokens; those beyond the last token are ignored."""
        for index, logprob in enumerate(delta.logprobs[: self.num_missing]):
            top: tuple[tuple[int, float], ...] = ()
            if delta.top_tokens:
                top = tuple(zip(delta.top_tokens[index], delta.top_logprobs[index], strict=True))
            self._scored.append(replace(self._unscored.pop(), logprob=logprob, top=top))

    def opening(self) -> TextDelta:
        """Return the first delta of each choice; only once nothing is missing."""
        options = self._options
        # many choices may begin with the same long prompt
        if self._opening is None:
            self._opening = TextDelta(
                text=self.text,
                logprobs=self._with_top(options.num_logprobs) if options.echo else (),
                prompt=self._with_top(options.num_prompt_logprobs),
            )
        return self._opening

    def _with_top(self, count: int | None) -> tuple[TokenLogprob, ...]:
        if count is None:
            return ()
        return tuple(replace(token, top=token.top[:count]) for token in self._scored)


def _unscored(ids: Sequence[int], pieces: Sequence[str]) -> list[TokenLogprob]:
    """Return the tokens without log-probabilities, in reverse order."""
    tokens, offset = [], 0
    for token, piece in zip(ids, pieces, strict=True):
        tokens.append(TokenLogprob(token=token, text=piece, offset=offset, logprob=None, top=()))
        offset += len(piece)
    tokens.reverse()
    return tokens


def _pieces(vocabulary: Vocabulary, ids: Sequence[int], text: str | None) -> list[str]:
    """Return each token's part of the prompt's text.

    Control tokens of a text are shown only where the client wrote them, not those that the
    tokenizer added; among ids, all were given by the client.
    """
    detokenizer = Detokenizer(vocabulary, skip_special=False, starts_text=True)
    pieces: list[str] = []
    length = 0
    for token in ids:
        spelling = vocabulary.special_texts.get(token, "")
        is_added = text is not None and not text.startswith(spelling, length)
        pieces.append("" if is_added else detokenizer.push(token))
        length += len(pieces[-1])
    pieces[-1] += detokenizer.finish()
    return pieces
