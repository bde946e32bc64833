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

    Attributes:
        vocabulary: of the tokenizer.

    Args:
        ids: int32 token ids.
        parts: of the prompt as the client wrote it, one per token; None where it gave ids.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        options: TextOptions,
        ids: Sequence[int],
        parts: Sequence[str] | None,
    ) -> None:
        self.vocabulary = vocabulary
        self._options = options
        pieces: Sequence[str] = [""] * len(ids)
        if options.echo:
            pieces = _pieces(vocabulary, ids) if parts is None else parts
        self.text = "".join(pieces)
        self._opening: TextDelta | None = None
        self._scored: list[TokenLogprob] = []
        self._unscored: list[TokenLogprob] = []
        if options.num_scored is not None:
            self._unscored = _unscored(ids, pieces)
            # nothing predicts the first token
            self._scored.append(self._unscored.pop())

    @property
    def size(self) -> int:
        """About how much `opening` is; see `TextDelta.size`."""
        return (2 + (self._options.num_scored or 0)) * len(self._scored)

    @property
    def num_missing(self) -> int:
        """Tokens whose log-probability the engine has not reported yet."""
        return len(self._unscored)

    def push(self, delta: Delta) -> None:
        """Take log-probabilities of the next tokens; those beyond the last token are ignored."""
        count = self._options.num_scored
        for index, logprob in enumerate(delta.logprobs[: self.num_missing]):
            top: tuple[tuple[int, float], ...] = ()
            if delta.top_tokens:
                tokens, logprobs = delta.top_tokens[index], delta.top_logprobs[index]
                top = tuple(zip(tokens[:count], logprobs[:count], strict=True))
            self._scored.append(replace(self._unscored.pop(), logprob=logprob, top=top))

    def opening(self) -> TextDelta:
        """Return the first delta of each choice; only once nothing is missing."""
        options = self._options
        # many choices may begin with the same long prompt
        if self._opening is None:
            echoed = self._with_top(options.num_logprobs) if options.echo else ()
            self._opening = TextDelta(
                text=self.text,
                logprobs=echoed,
                num_echoed=len(echoed),
                prompt=self._with_top(options.num_prompt_logprobs),
            )
        return self._opening

    def _with_top(self, count: int | None) -> tuple[TokenLogprob, ...]:
        if count is None:
            return ()
        if count == self._options.num_scored:
            return tuple(self._scored)
        return tuple(replace(token, top=token.top[:count]) for token in self._scored)


def _unscored(ids: Sequence[int], pieces: Sequence[str]) -> list[TokenLogprob]:
    """Return the tokens without log-probabilities, in reverse order."""
    tokens, offset = [], 0
    for token, piece in zip(ids, pieces, strict=True):
        tokens.append(TokenLogprob(token=token, text=piece, offset=offset, logprob=None, top=()))
        offset += len(piece)
    tokens.reverse()
    return tokens


def _pieces(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    """Return each token's part of the text of ids, control tokens included."""
    detokenizer = Detokenizer(vocabulary, skip_special=False, starts_text=True)
    pieces = [detokenizer.push(token) for token in ids]
    pieces[-1] += detokenizer.finish()
    return pieces
