from typing import Any

import pytest

from app.protocol.embeddings.request import EmbeddingRequest, ScoreRequest
from app.protocol.parsing import parse_request
from engine.errors import InvalidRequest


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("a", [("input", "a")]),
        ([1, 2], [("input", [1, 2])]),
        (["a", "b"], [("input[0]", "a"), ("input[1]", "b")]),
        ([[1], [2, 3]], [("input[0]", [1]), ("input[1]", [2, 3])]),
    ],
)
def test_inputs_have_the_names_under_which_errors_speak_of_them(given: Any, inputs: Any) -> None:
    body, ignored = parse_request(EmbeddingRequest, {"input": given, "user": "u"}, "reject")
    assert body.inputs() == inputs
    assert ignored == ["user"]


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ("a", "b", [(0, 1)]),
        ("a", ["b", "c"], [(0, 1), (0, 2)]),
        (["a"], ["b", "c"], [(0, 1), (0, 2)]),
        (["a", "b"], ["c", "d"], [(0, 2), (1, 3)]),
    ],
)
def test_texts_are_compared_pair_by_pair_or_one_with_all(
    first: Any, second: Any, pairs: Any
) -> None:
    body, _ = parse_request(ScoreRequest, {"text_1": first, "text_2": second}, "reject")
    assert body.pairs() == pairs
    names = [name for name, _ in body.inputs()]
    assert len(names) == 1 + max(b for _, b in pairs)


@pytest.mark.parametrize("first", [["a", "b"], [1, 2], [], "", 3])
def test_texts_that_make_no_pairs_are_refused(first: Any) -> None:
    with pytest.raises(InvalidRequest, match="text_1"):
        parse_request(ScoreRequest, {"text_1": first, "text_2": "c"}, "reject")
