"""The texts of a beam search while it runs."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from app.text.detokenizer import Detokenizer
from app.text.stops.stop_matcher import StopMatcher
from app.text.text_options import TextOptions
from app.text.vocabulary import Vocabulary
from engine.runtime.protocol import BeamStep
from engine.types import ENDED_BY_PATTERN


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamText:
    """The text of one hypothesis so far.

    Attributes:
        text: whole characters only, up to the first stop string.
        cumulative_logprob: sum of the log-probabilities of its tokens.
        is_finished: whether a stop token or a stop string has ended it.
    """

    text: str
    cumulative_logprob: float
    is_finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamProgress:
    """The best hypotheses of one prompt so far, best first; replaces any earlier progress."""

    beams: tuple[BeamText, ...]


@dataclass(frozen=True, slots=True)
class _Node:
    """One hypothesis with all that its next token needs; never changed, as beams share parents.

    Attributes:
        stops_from: characters of the text in which no stop string begins.
    """

    detokenizer: Detokenizer
    text: str = ""
    cumulative: float = 0.0
    length: int = 0
    stops_from: int = 0
    is_finished: bool = False

    def extend(self, token: int, logprob: float, min_tokens: int) -> "_Node":
        detokenizer = self.detokenizer.fork()
        text = self.text + detokenizer.push(token)
        length, stops_from = self.length + 1, self.stops_from
        if length <= min_tokens:
            stops_from = len(text) + (0 if detokenizer.is_complete else 1)
        return _Node(detokenizer, text, self.cumulative + logprob, length, stops_from)

    def end(self, token: int, logprob: float, min_tokens: int, *, include_stop: bool) -> "_Node":
        """Add the token that ends it, whose text counts only with `include_stop`."""
        said = self.extend(token, logprob, min_tokens)
        last = said if include_stop else self
        text = last.text + last.detokenizer.fork().finish()
        return replace(said, text=text, is_finished=True)


class BeamTexts:
    """Follows the beams of one search; a step decodes one token per beam."""

    def __init__(
        self, vocabulary: Vocabulary, options: TextOptions, *, num_shown: int, length_penalty: float
    ) -> None:
        """Args: num_shown: hypotheses that `best` returns at most."""
        self._options = options
        self._num_shown = num_shown
        self._length_penalty = length_penalty
        start = Detokenizer(
            vocabulary, skip_special=options.skip_special, starts_text=options.starts_text
        )
        self._open = {0: _Node(start)}
        self._finished: list[_Node] = []

    def push(self, steps: Iterable[BeamStep]) -> None:
        """Take in the steps that the engine has reported."""
        for step in steps:
            self._take(step)

    def best(self) -> BeamProgress:
        """Return the best hypotheses, finished or not, by their length-penalised scores."""
        nodes = sorted((*self._finished, *self._open.values()), key=self._score, reverse=True)
        return BeamProgress(beams=tuple(map(self._show, nodes[: self._num_shown])))

    def _take(self, step: BeamStep) -> None:
        going_on: dict[int, _Node] = {}
        min_tokens = self._options.min_tokens
        rows = zip(step.indices, step.parents, step.tokens, step.logprobs, strict=True)
        for index, parent, token, logprob in rows:
            before = self._open[parent]
            if index >= 0:
                going_on[index] = before.extend(token, logprob, min_tokens)
            else:
                # of a token that completes a stop string `_show` keeps what comes before the string
                include_stop = self._options.include_stop or index == ENDED_BY_PATTERN
                end = before.end(token, logprob, min_tokens, include_stop=include_stop)
                self._finished.append(end)
        self._open = going_on
        self._finished.sort(key=self._score, reverse=True)
        del self._finished[self._num_shown :]

    def _score(self, node: _Node) -> float:
        return node.cumulative / float(max(1, node.length) ** self._length_penalty)

    def _show(self, node: _Node) -> BeamText:
        matcher = StopMatcher(self._options.stops, include_stop=self._options.include_stop)
        text = matcher.push(node.text, node.stops_from)
        if matcher.matched is None:
            text += matcher.flush()
        return BeamText(text=text, cumulative_logprob=node.cumulative, is_finished=node.is_finished)
