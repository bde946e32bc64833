"""What an answer repeats of its prompt: its text, and the log-probabilities of its tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.text.choice_text import TextDelta, TokenLogprob
from app.text.detokenizer import Detokenizer
from app.text.vocabulary import Vocabulary
from engine.runtime.protocol import Delta


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """What is wanted of the prompt.

    Attributes:
        echo: begin each choice with the prompt.
        num_echo_logprobs: alternatives per echoed token; None for no log-probabilities.
        num_logprobs: alternatives per token of the list beside the text; None for no such list.
    """

    echo: bool = False
    num_echo_logprobs: int | None = None
    num_logprobs: int | None = None

    @property
    def num_scored(self) -> int | None:
        """Alternatives that the engine must tell; None for no log-probabilities at all."""
        wanted = (self.num_echo_logprobs if self.echo else None, self.num_logprobs)
        return max((count for count in wanted if count is not None), default=None)


class PromptText:
    """The prompt of one or more choices, and what the engine tells of it.

    Args:
        ids: int32 token ids.
        text: the prompt as the client wrote it, or None where it gave ids.
    """

    def __init__(
        self, vocabulary: Vocabulary, options: PromptOptions, ids: Sequence[int], text: str | None
    ) -> None:
        self._options = options
        pieces = _pieces(vocabulary, ids, text) if options.echo else [""] * len(ids)
        self.text = "".join(pieces)
        self._opening: TextDelta | None = None
        self._entries: list[TokenLogprob] = []
        self._unscored: list[TokenLogprob] = []
        if options.num_scored is not None:
            self._unscored = _unscored(ids, pieces)
            # nothing predicts the first token
            self._entries.append(self._unscored.pop())

    @property
    def num_missing(self) -> int:
        """Tokens whose log-probability is still to be told."""
        return len(self._unscored)

    def push(self, delta: Delta) -> None:
        """Take log-probabilities of the next tokens; what is told again is ignored."""
        for index, logprob in enumerate(delta.logprobs[: self.num_missing]):
            top: tuple[tuple[int, float], ...] = ()
            if delta.top_tokens:
                top = tuple(zip(delta.top_tokens[index], delta.top_logprobs[index], strict=True))
            self._entries.append(replace(self._unscored.pop(), logprob=logprob, top=top))

    def opening(self) -> TextDelta:
        """Return what comes before the text of each choice; only once nothing is missing."""
        options = self._options
        # many choices may begin with the same long prompt
        if self._opening is None:
            self._opening = TextDelta(
                text=self.text,
                logprobs=self._with_top(options.num_echo_logprobs) if options.echo else (),
                prompt=self._with_top(options.num_logprobs),
            )
        return self._opening

    def _with_top(self, count: int | None) -> tuple[TokenLogprob, ...]:
        if count is None:
            return ()
        return tuple(replace(entry, top=entry.top[:count]) for entry in self._entries)


def _unscored(ids: Sequence[int], pieces: Sequence[str]) -> list[TokenLogprob]:
    """Make entries without numbers, the first token last."""
    entries, offset = [], 0
    for token, piece in zip(ids, pieces, strict=True):
        entries.append(TokenLogprob(token=token, text=piece, offset=offset, logprob=None, top=()))
        offset += len(piece)
    entries.reverse()
    return entries


def _pieces(vocabulary: Vocabulary, ids: Sequence[int], text: str | None) -> list[str]:
    """Return each token's share of the prompt's text.

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
