"""Texts at random, and what is said of them."""

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from load_tests.bench.grammars.written import end_ids, judge, write

END = 7


class _Counting:
    """Allows one token after the other, and the end behind the third; or nothing there."""

    def __init__(self, *, ends: bool = True) -> None:
        self.taken: list[int] = []
        self._ends = ends

    def mask(self) -> NDArray[np.uint8]:
        """The bit of the next token."""
        next_token = END if len(self.taken) == 3 else len(self.taken)
        bit = 1 << next_token if len(self.taken) < 3 or self._ends else 0
        return np.array([bit], np.uint8)

    def take(self, token: int) -> None:
        """Note it."""
        self.taken.append(token)


def test_a_text_is_written_until_it_may_end() -> None:
    ends = end_ids(lambda text: [1] if text == "}" else [1, 2])
    assert ends.tolist() == [1]
    assert write(_Counting(), END, ends, random.Random(0)) == [0, 1, 2]
    assert write(_Counting(ends=False), END, ends, random.Random(0)) is None


def test_what_does_not_match_is_named() -> None:
    schema = {"type": "integer"}
    assert judge(schema, ["1", '"a"', "x"]) == ['"a"', "x"]
    with pytest.raises(ValueError, match="nowhere"):
        judge({"$ref": "#/nowhere"}, ["1"])
