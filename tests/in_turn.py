"""Half of the combinations of a test's parameters, for each run; the others are slow."""

from collections.abc import Iterable, Sequence

import pytest


def leave_out_half(tests: Iterable[pytest.Item]) -> None:
    """Mark the other half of those that are marked `in_turn` as slow, IN PLACE."""
    # the values of each parameter that were met, with their places
    met: dict[str, list[dict[str, int]]] = {}
    for test in tests:
        if test.get_closest_marker("in_turn") is None or test.get_closest_marker("slow"):
            continue
        assert isinstance(test, pytest.Function)
        ids = test.callspec._idlist
        parameters = met.setdefault(test.nodeid.partition("[")[0], [{} for _ in ids])
        indices = [
            values.setdefault(value, len(values))
            for values, value in zip(parameters, ids, strict=True)
        ]
        if is_left_out(indices):
            test.add_marker(pytest.mark.slow)


def is_left_out(indices: Sequence[int]) -> bool:
    """Whether a combination is for where time is no matter, by the place of each of its values.

    Every value is in half of the others' combinations. Of three parameters or more, every two
    values meet in one that is tried.
    """
    assert len(indices) > 1, "half of the values of a single parameter would be left out"
    return sum(indices) % 2 == 1
