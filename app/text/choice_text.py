"""Turns the tokens of one choice into text, its end and its log-probabilities."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from app.text.detokenizer import Detokenizer
from app.text.reply.repetition import RepetitionFinder
from app.text.stops.stop_matcher import StopMatcher
from app.text.text_options import TextOptions
from app.text.vocabulary import Vocabulary
from engine.errors import EngineError
from engine.runtime.protocol import Delta
from engine.types import LOST_REASONS, FinishReason

# a log-probability takes about as long to write as so many characters to tokenise
_NUMBER_SIZE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One token with its log-probability and its part of the text.

    Attributes:
        text: characters that this token completed; joined, the texts of all tokens are the whole
            text.
        offset: number of characters before them, in the whole text.
        logprob: None for the first token of a prompt, which nothing predicts.
        top: (token, log-probability) of the most likely tokens, most likely first.
    """

    token: int
    text: str
    offset: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """What is new of one choice: text, tokens, and the end if it has come.

    Attributes:
        token_ids: sampled tokens, the one that ended the sequence included; usage counts them.
            Tokens without text come along with later text or with the end.
        logprob: sum of the log-probabilities of `token_ids`.
        logprobs: tokens whose text is complete and final; none beyond the end of the text.
        num_echoed: how many of the first of `logprobs` are the prompt's, in the first delta of a
            choice; all choices of a prompt share them.
        prompt: tokens of the prompt, in the first delta of a choice if they are wanted.
        finish_reason: None while the choice goes on; "error" where the rules left no token.
        stop_reason: what ended it: a stop string, an id of the request's `stop_token_ids`, or for
            an error the field with the rule.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprob: float = 0.0
    logprobs: tuple[TokenLogprob, ...] = ()
    num_echoed: int = 0
    prompt: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @property
    def size(self) -> int:
        """About how much it is, in characters: a number counts as several."""
        scored = (self.logprobs, self.prompt)
        # the last one stands for all: the first of a prompt has no alternatives
        num_numbers = sum(len(tokens) * (1 + len(tokens[-1].top)) for tokens in scored if tokens)
        return len(self.text) + len(self.token_ids) + _NUMBER_SIZE * num_numbers


_NOTHING_NEW = TextDelta(text="")
_GIVEN_UP = frozenset((FinishReason.ABORT, FinishReason.ERROR, FinishReason.EXPIRED, *LOST_REASONS))


def join(deltas: Sequence[TextDelta]) -> TextDelta:
    """Put the deltas of one choice together, in order."""
    return TextDelta(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprob=sum(delta.logprob for delta in deltas),
        logprobs=tuple(token for delta in deltas for token in delta.logprobs),
        num_echoed=deltas[0].num_echoed,
        prompt=deltas[0].prompt,
        finish_reason=deltas[-1].finish_reason,
        stop_reason=deltas[-1].stop_reason,
    )


def check_alive(delta: Delta) -> None:
    """Raise EngineError if the engine ended the sequence without completing it."""
    if delta.finish_reason in _GIVEN_UP:
        raise EngineError("the engine gave the request up")


class ChoiceText:
    """The text of one choice while its tokens arrive.

    However tokens are grouped into deltas, the joined result is the same. Text that may be the
    beginning of a stop string is held back, and a token's log-probability until all of its text
    has been returned.

    Args:
        start: number of characters of the answer that come before this text.
    """

    def __init__(self, vocabulary: Vocabulary, options: TextOptions, *, start: int = 0) -> None:
        self._options = options
        self._detokenizer = Detokenizer(
            vocabulary,
            skip_special=options.skip_special,
            starts_text=options.starts_text,
            kept=options.kept_special,
        )
        self._matcher = StopMatcher(options.stops, include_stop=options.include_stop)
        self._finder = None if options.repetition is None else RepetitionFinder(options.repetition)
        self._repeats = False
        self._num_tokens = 0
        self._num_decoded = start
        # stop strings begin at this character or later
        self._stops_from = start
        self._num_released = start
        self._held: deque[TokenLogprob] = deque()
        self._unreported: list[int] = []
        self._unreported_logprob = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether `push_plain` serves: nothing but text is wanted, and no text ends it."""
        options = self._options
        return not options.stops and options.num_logprobs is None and self._finder is None

    def push_plain(self, delta: Delta) -> tuple[str, int]:
        """Like `push`, for a choice that is plain and goes on.

        Returns:
            The new text, and how many tokens have come with it: none as long as there is no text.
        """
        push = self._detokenizer.push
        text = "".join([push(token) for token in delta.tokens])
        self._unreported += delta.tokens
        self._unreported_logprob += sum(delta.logprobs)
        if not text:
            return "", 0
        self._num_released += len(text)
        self._num_decoded += len(text)
        return text, len(self._report()[0])

    def push(self, delta: Delta) -> TextDelta:
        """Add tokens; those after the first complete stop string, or a repetition, are ignored.

        Raises:
            EngineError: see `check_alive`.
        """
        check_alive(delta)
        text, used = self._decode(delta)
        ends = self._repeats or delta.finish_reason is not FinishReason.NONE
        if ends and self._matcher.matched is None:
            text += self._push_tail() + self._matcher.flush()
        self._num_released += len(text)
        self._unreported += delta.tokens[:used]
        self._unreported_logprob += sum(delta.logprobs[:used])
        finish_reason, stop_reason = self._end(delta)
        if not text and finish_reason is None:
            return _NOTHING_NEW
        token_ids, logprob = self._report()
        return TextDelta(
            text=text,
            token_ids=token_ids,
            logprob=logprob,
            logprobs=self._release(ended=finish_reason is not None),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )

    def _decode(self, delta: Delta) -> tuple[str, int]:
        """Return the text up to a stop string, and the number of tokens that count."""
        last = len(delta.tokens) - 1
        parts = []
        for index, token in enumerate(delta.tokens):
            if (
                index == last
                and delta.finish_reason is FinishReason.STOP
                and not self._options.include_stop
            ):
                break
            text = self._detokenizer.push(token)
            self._count_token(text)
            if self._options.num_logprobs is not None:
                self._hold(delta, index, text)
            parts.append(self._match(text))
            self._repeats = self._finder is not None and self._finder.push(token)
            if self._repeats or self._matcher.matched is not None:
                return "".join(parts), index + 1
        return "".join(parts), last + 1

    def _push_tail(self) -> str:
        """Decode an incomplete last character; its text belongs to the last token."""
        tail = self._detokenizer.finish()
        if tail and self._held:
            last = self._held.pop()
            self._held.append(_with_text(last, last.text + tail))
        return self._match(tail)

    def _count_token(self, text: str) -> None:
        """Note where stop strings may begin: after the text of the first `min_tokens` tokens."""
        self._num_tokens += 1
        if self._num_tokens <= self._options.min_tokens:
            begun = 0 if self._detokenizer.is_complete else 1
            self._stops_from = self._num_decoded + len(text) + begun

    def _match(self, text: str) -> str:
        """Return the text that is certain to be kept."""
        num_free = self._stops_from - self._num_decoded
        self._num_decoded += len(text)
        return self._matcher.push(text, num_free)

    def _hold(self, delta: Delta, index: int, text: str) -> None:
        top: tuple[tuple[int, float], ...] = ()
        if delta.top_tokens:
            top = tuple(zip(delta.top_tokens[index], delta.top_logprobs[index], strict=True))
        self._held.append(
            TokenLogprob(
                token=delta.tokens[index],
                text=text,
                offset=self._num_decoded,
                logprob=delta.logprobs[index],
                top=top,
            )
        )

    def _release(self, *, ended: bool) -> tuple[TokenLogprob, ...]:
        """Take out the held tokens whose text has been returned entirely.

        A token without text waits for later text, and is dropped if a stop string ends the text
        before it.
        """
        if ended and self._matcher.matched is None:
            released, self._held = tuple(self._held), deque()
            return released
        fitting = []
        while self._held:
            first, room = self._held[0], self._num_released - self._held[0].offset
            if room <= 0 or (not ended and (room < len(first.text) or self._may_grow(first))):
                break
            fitting.append(_with_text(first, first.text[:room]))
            self._held.popleft()
        return tuple(fitting)

    def _may_grow(self, token: TokenLogprob) -> bool:
        """Whether an incomplete last character may still be added to the text of this token."""
        return token is self._held[-1] and not self._detokenizer.is_complete

    def _report(self) -> tuple[tuple[int, ...], float]:
        """Return the tokens since the last report, and the sum of their log-probabilities."""
        reported = tuple(self._unreported), self._unreported_logprob
        self._unreported, self._unreported_logprob = [], 0.0
        return reported

    def _end(self, delta: Delta) -> tuple[str | None, str | int | None]:
        if self._matcher.matched is not None:
            return "stop", self._matcher.matched
        if self._repeats:
            return "repetition", None
        if delta.finish_reason is FinishReason.STOP:
            # a beam search may end with fewer hypotheses than choices; the others have no token
            last = delta.tokens[-1] if delta.tokens else None
            return "stop", last if last in self._options.stop_token_ids else None
        if delta.finish_reason is FinishReason.RULED_OUT:
            return "error", self._options.late_rule
        if delta.finish_reason is FinishReason.PATTERN:
            return "stop", None
        return ("length", None) if delta.finish_reason is FinishReason.LENGTH else (None, None)


def _with_text(token: TokenLogprob, text: str) -> TokenLogprob:
    return TokenLogprob(
        token=token.token, text=text, offset=token.offset, logprob=token.logprob, top=token.top
    )
