"""Texts that a grammar lets a model write which chooses at random, judged by another library."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jsonschema
import numpy as np
from numpy.typing import NDArray

# of each schema
NUM_TEXTS = 4
_MOST_TOKENS = 400
# of what a model at random would seldom come to: the ends of texts, numbers, lists and objects
_ENDS = ('"', "}", "]", "1", ":", ",", '":', '",', '"}')
_SHARE_OF_ENDS = 0.5


class Writing(Protocol):
    """A compiled schema behind some tokens, see `load_tests.bench.grammars.libraries`."""

    def mask(self) -> NDArray[np.uint8]: ...

    def take(self, token: int) -> None: ...


def end_ids(encode: Callable[[str], list[int]]) -> NDArray[np.int64]:
    """Ids of tokens that bring a text to its end."""
    return np.array(sorted({ids[0] for end in _ENDS if len(ids := encode(end)) == 1}), np.int64)


def write(
    follower: Writing, end_id: int, ends: NDArray[np.int64], rng: random.Random
) -> list[int] | None:
    """Draw tokens from those that may follow; None where the text does not end by itself.

    Args:
        ends: see `end_ids`; one of them is taken half of the time, where it may follow.
    """
    ids: list[int] = []
    while len(ids) < _MOST_TOKENS:
        is_allowed = np.unpackbits(follower.mask(), bitorder="little")
        if is_allowed[end_id]:
            return ids
        choices = ends[is_allowed[ends] == 1]
        if not len(choices) or rng.random() >= _SHARE_OF_ENDS:
            choices = np.flatnonzero(is_allowed)
        if not len(choices):
            return None
        token = int(choices[rng.randrange(len(choices))])
        ids.append(token)
        follower.take(token)
    return None


def judge(schema: dict[str, Any], texts: Sequence[str]) -> list[str]:
    """Return the texts that do not match a schema.

    Raises:
        ValueError: if the schema is none that can be judged by.
    """
    try:
        validator = jsonschema.validators.validator_for(schema)(schema)
        return [text for text in texts if not _is_right(validator, text)]
    # of the schema: what it refers to is not there, a pattern is none of Python's, and so on
    except Exception as error:
        raise ValueError(str(error)) from error


def _is_right(validator: Any, text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return bool(validator.is_valid(value))
