"""Follows a `StopPattern` along the tokens of a sequence."""

from engine.types import PATTERN_MET, StopPattern

States = frozenset[int]

NO_STATES: States = frozenset()


class StopPatternMatcher:
    """The automaton of one request, shared by its beams: each holds the states that it is in."""

    def __init__(self, pattern: StopPattern) -> None:
        self._targets: dict[tuple[int, int], list[int]] = {}
        self._silent = frozenset(pattern.silent)
        edges = zip(pattern.sources, pattern.tokens, pattern.targets, strict=True)
        for source, token, target in edges:
            self._targets.setdefault((source, token), []).append(target)

    def advance(self, states: States, token: int) -> States | None:
        """Return the states after a token; None if the pattern is met."""
        if token in self._silent:
            return states
        reached = frozenset(
            target for state in (0, *states) for target in self._targets.get((state, token), ())
        )
        return None if PATTERN_MET in reached else reached
