"""Stop strings as the engine can follow them: an automaton over tokens.

A beam search must end a hypothesis the moment its text holds a stop string, or it would rank and
extend what is over. The engine knows no text: it gets the transitions of an automaton, that is,
which tokens lead towards a stop string. Bytes are enough: in UTF-8 the bytes of a string are found
only where its characters are.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from heapq import merge
from itertools import islice

from app.text.vocabulary import Vocabulary
from engine.types import PATTERN_MET, StopPattern, int32

# (state, token, next state)
Transition = tuple[int, int, int]
# one sort of 50,000 keeps the interpreter lock for 50 ms of CPU time, of so many for 4
_RUN_LEN = 4096


class StopPatternMaker:
    """Makes patterns for one vocabulary, which is sorted at the first use."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def make(self, stops: Sequence[str], *, skip_special: bool, min_tokens: int = 0) -> StopPattern:
        """Return the pattern that is met by the token that completes any of the stop strings.

        The space that some tokenizers add before a first word counts as text here.

        Args:
            skip_special: whether control tokens have no text.
            min_tokens: tokens before which no stop string begins.
        """
        vocabulary = self._vocabulary
        skipped = vocabulary.special_ids if skip_special else frozenset()
        edges: list[Transition] = []
        first_state = 0
        for stop in stops:
            data = stop.encode()
            edges += self._edges(data, first_state)
            first_state += len(data)
        edges = [edge for edge in edges if edge[1] not in skipped]
        silent = [
            token for token, piece in enumerate(vocabulary.pieces) if not piece or token in skipped
        ]
        return StopPattern(
            sources=int32([source for source, _, _ in edges]),
            tokens=int32([token for _, token, _ in edges]),
            targets=int32([target for _, _, target in edges]),
            silent=int32(silent),
            min_tokens=min_tokens,
        )

    def _edges(self, stop: bytes, first: int) -> Iterator[Transition]:
        """Yield (state, token, next state); in state first + k the last k bytes begin the stop."""
        for token, piece in enumerate(self._vocabulary.pieces):
            if stop in piece:
                yield 0, token, PATTERN_MET
        for length in range(1, len(stop)):
            state, rest = first + length, stop[length:]
            for token in _in_range(self._backward, stop[:length][::-1]):
                yield 0, token, state
            for token in _in_range(self._forward, rest):
                yield state, token, PATTERN_MET
            for more in range(1, min(len(rest), self._vocabulary.longest_piece + 1)):
                for token in self._by_piece.get(rest[:more], ()):
                    yield state, token, state + more

    @cached_property
    def _forward(self) -> list[tuple[bytes, int]]:
        return _sorted((piece, token) for token, piece in enumerate(self._vocabulary.pieces))

    @cached_property
    def _backward(self) -> list[tuple[bytes, int]]:
        return _sorted((piece[::-1], token) for token, piece in enumerate(self._vocabulary.pieces))

    @cached_property
    def _by_piece(self) -> dict[bytes, list[int]]:
        found: dict[bytes, list[int]] = {}
        for token, piece in enumerate(self._vocabulary.pieces):
            found.setdefault(piece, []).append(token)
        return found


def _in_range(pieces: Sequence[tuple[bytes, int]], beginning: bytes) -> Iterator[int]:
    """Yield the tokens whose pieces, which are sorted, start with `beginning`."""
    for index in range(bisect_left(pieces, (beginning, -1)), len(pieces)):
        piece, token = pieces[index]
        if not piece.startswith(beginning):
            return
        yield token


def _sorted(pieces: Iterable[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
    """Sort in runs, and merge these in Python, so that other threads have their turn."""
    rest, runs = iter(pieces), []
    while run := sorted(islice(rest, _RUN_LEN)):
        runs.append(run)
    return list(merge(*runs))
