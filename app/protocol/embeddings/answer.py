"""The answers of POST /v1/embeddings and POST /v1/score."""

import base64
import math
import sys
from collections.abc import Sequence
from operator import mul
from typing import Any, Literal

from app.protocol.answer import Usage
from engine.types import FloatColumn, float32


def embedding_answer(
    vectors: Sequence[FloatColumn],
    encoding: Literal["float", "base64"],
    model_id: str,
    usage: Usage,
) -> dict[str, Any]:
    """Return the object of the API; base64 is of float32, the lowest byte first."""
    return {
        "object": "list",
        "model": model_id,
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": vector.tolist() if encoding == "float" else _base64(vector),
            }
            for index, vector in enumerate(vectors)
        ],
        "usage": _usage(usage),
    }


def score_answer(
    vectors: Sequence[FloatColumn],
    pairs: Sequence[tuple[int, int]],
    *,
    answer_id: str,
    created_s: int,
    model_id: str,
    usage: Usage,
) -> dict[str, Any]:
    """Return the cosine of the angle between the vectors of each pair, as vLLM writes scores."""
    units = [normed(vector) for vector in vectors]
    return {
        "id": answer_id,
        "object": "list",
        "created": created_s,
        "model": model_id,
        "data": [
            {"index": index, "object": "score", "score": sum(map(mul, units[a], units[b]))}
            for index, (a, b) in enumerate(pairs)
        ],
        "usage": _usage(usage),
    }


def shaped(vector: FloatColumn, dimensions: int | None, *, is_normalized: bool) -> FloatColumn:
    """The leading dimensions of a vector, of length 1 where the model's are."""
    kept = vector[:dimensions]
    return normed(kept) if is_normalized else kept


def normed(vector: FloatColumn) -> FloatColumn:
    """A vector of length 1 in the same direction; zeros stay as they are."""
    length = math.hypot(*vector)
    return float32([x / length for x in vector]) if length else vector


def _base64(vector: FloatColumn) -> str:
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()


def _usage(usage: Usage) -> dict[str, Any]:
    content = usage.as_json()
    del content["completion_tokens"]
    return content
