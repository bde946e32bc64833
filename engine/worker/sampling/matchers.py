"""Matchers of llguidance: one for each row, copied from those that are compiled for its grammar.

The copies of a matcher share what its lexer has found out so far, and a lock on it. A lexer knows
most of what it needs after a few tokens, but a mask may take milliseconds, and so would all others
of its lexer. So a grammar is compiled several times, as rows come, and its rows take turns.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from llguidance import LLMatcher

from engine.errors import InvariantViolated

# a matcher, from a thread
Compiled: TypeAlias = "Future[LLMatcher]"


class StepTokens(Protocol):
    """A step whose tokens the device may not have sampled yet."""

    def tokens(self) -> Sequence[int]:
        """Wait for what it has sampled, in the order of `StepPlan.sampled_rows`."""
        ...


# what has sampled a row's last token, and the place of the token in it; or the token
LastToken: TypeAlias = tuple[StepTokens, int] | int | None


class Compilations:
    """One grammar before its first token, compiled again for each row, up to some number."""

    def __init__(self, text: str, num_copies: int, compile_: Callable[[str], Compiled]) -> None:
        self.text = text
        self._num_copies, self._compile = num_copies, compile_
        self._turn = 0
        self.compiled: list[Compiled] = []

    def take_turn(self) -> int:
        """Index of the matcher that the next row is to copy; a new one is compiled in a thread."""
        turn, self._turn = self._turn, (self._turn + 1) % self._num_copies
        if turn == len(self.compiled):
            self.compiled.append(self._compile(self.text))
        return turn

    def copy(self, turn: int) -> tuple[int, LLMatcher]:
        """Copy the matcher of a turn, or one that is compiled if that is not yet.

        Returns:
            Index of the one that was copied, and the copy.
        """
        if not self.compiled[turn].done():
            # in their order, so the first ones are
            turn %= max(1, sum(each.done() for each in self.compiled))
        return turn, self.compiled[turn].result().deep_copy()


@dataclass(slots=True)
class RowMatcher:
    """One row that has a grammar.

    Attributes:
        tokens: of the output.
        num_read: that the matcher has read.
        last: token, where it may be new to the matcher.
        stop_ids: ids that end the row, but where the grammar is incomplete.
        num_begun: how often it has begun again.
        turn: which matcher of the grammar it copies, see `Compilations`.
    """

    grammar: Compilations
    tokens: list[int]
    stop_ids: tuple[int, ...]
    turn: int
    num_read: int = 0
    num_begun: int = 0
    matcher: LLMatcher | None = None
    last: LastToken = None

    def fork(self) -> "RowMatcher":
        """The same for another row, with a copy of the matcher if there is one already."""
        child = replace(self, tokens=[*self.tokens])
        if self.matcher is None:
            child.turn = self.grammar.take_turn()
        else:
            child.matcher = self.matcher.deep_copy()
        return child

    def take_unread(self, num_output: int, last: LastToken) -> list[int]:
        """What the matcher has to read of so many output tokens, the last of which may be new.

        Raises:
            InvariantViolated: if more are new, or it has read more already.
        """
        if len(self.tokens) == num_output - 1 and last is not None:
            token = last if isinstance(last, int) else last[0].tokens()[last[1]]
            # a row that has no next token is fed with some other one, until its end is known
            self.tokens.append(max(token, 0))
        if len(self.tokens) != num_output:
            raise InvariantViolated(f"a grammar has seen {len(self.tokens)} tokens of {num_output}")
        if self.matcher is None:
            self.turn, self.matcher = self.grammar.copy(self.turn)
        unread = self.tokens[self.num_read :]
        self.num_read = num_output
        return unread

    def begin_again(self, grammar: Compilations) -> None:
        """Read all tokens by a matcher that was compiled anew."""
        self.grammar, self.num_read = grammar, len(self.tokens)
        self.num_begun += 1
        self.turn, self.matcher = grammar.copy(grammar.take_turn())
        self.matcher.consume_tokens(self.tokens)

    def made(self) -> LLMatcher:
        """The matcher, which the first `take_unread` has copied."""
        assert self.matcher is not None
        return self.matcher
