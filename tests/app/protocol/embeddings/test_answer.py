import base64
import struct

import pytest

from app.protocol.answer import Usage
from app.protocol.embeddings.answer import embedding_answer, normed, score_answer, shaped
from engine.types import float32

_USAGE = Usage(prompt_tokens=5, completion_tokens=0, cached_tokens=2)


def test_base64_is_float32_with_the_lowest_byte_first() -> None:
    answer = embedding_answer([float32([1.5, -2.0])], "base64", "m", _USAGE)
    packed = base64.b64decode(answer["data"][0]["embedding"])
    assert struct.unpack("<2f", packed) == (1.5, -2.0)


def test_usage_counts_no_output() -> None:
    usage = embedding_answer([float32([1.0])], "float", "m", _USAGE)["usage"]
    assert usage == {
        "prompt_tokens": 5,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_vectors_are_cut_before_they_are_normed() -> None:
    vector = float32([3.0, 4.0, 12.0])
    assert shaped(vector, None, is_normalized=False) == vector
    assert shaped(vector, 2, is_normalized=True).tolist() == pytest.approx([0.6, 0.8])
    assert normed(float32([0.0, 0.0])).tolist() == [0.0, 0.0]


def test_a_score_is_the_cosine_of_a_pair() -> None:
    vectors = [float32([1.0, 0.0]), float32([2.0, 2.0]), float32([0.0, -3.0])]
    answer = score_answer(
        vectors, [(0, 1), (0, 2), (1, 2)], answer_id="i", created_s=7, model_id="m", usage=_USAGE
    )
    scores = [item["score"] for item in answer["data"]]
    assert scores == pytest.approx([2**-0.5, 0.0, -(2**-0.5)])
    assert (answer["id"], answer["created"], answer["object"]) == ("i", 7, "list")
