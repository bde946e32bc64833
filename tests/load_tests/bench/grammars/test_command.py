"""A small suite of schemas, of which one library makes what it should."""

import json
from pathlib import Path
from typing import Any

import pytest

from load_tests.bench.grammars.command import look_at_all, summarise
from load_tests.bench.grammars.libraries import LlGuidance, look_at
from tests.app.text.tokenizers import chatml_tokenizer

_CASES: list[dict[str, Any]] = [
    {
        "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        "tests": [
            {"data": {"a": 1}, "valid": True},
            {"data": {"a": "x"}, "valid": False},
            {"data": {}, "valid": False},
        ],
    },
    {"schema": {"type": "array", "uniqueItems": True}, "tests": []},
    # texts that are said to be what they are not
    {"schema": {"type": "null"}, "tests": [{"data": None, "valid": False}]},
    {"schema": {"type": "null"}, "tests": [{"data": 1, "valid": True}]},
]


def test_texts_are_followed_token_by_token() -> None:
    library = LlGuidance(chatml_tokenizer().to_json(), 2)
    sound, refused, let_through, mistaken = (look_at(library, 2, case) for case in _CASES)
    assert (sound["num_refused"], sound["num_let_through"]) == (0, 0)
    assert len(sound["mask_s"]) > 3
    assert sound["num_written"] > 0
    assert sound["num_mismatched"] == 0
    assert "uniqueItems" in refused["error"]
    assert (let_through["num_refused"], let_through["num_let_through"]) == (0, 1)
    assert (mistaken["num_refused"], mistaken["num_let_through"]) == (1, 0)


def test_a_file_that_kills_the_process_is_counted_and_the_rest_looked_at(tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(chatml_tokenizer().to_json(), encoding="utf-8")
    paths = [tmp_path / f"{index}.json" for index in range(5)]
    for path, case in zip(paths, [*_CASES, None], strict=True):
        path.write_text("[" if case is None else json.dumps(case), encoding="utf-8")
    found = look_at_all("llguidance", tokenizer, 2, [paths[0], paths[4], *paths[1:4]])
    assert [one is None for one in found] == [False, True, False, False, False]
    shares = summarise(found)
    assert shares["compiled"] == pytest.approx(3 / 5)
    assert shares["died or > 30 s"] == pytest.approx(1 / 5)
    assert shares["all right"] == pytest.approx(1 / 5)
    assert shares["invalid let through"] == shares["valid text refused"] == pytest.approx(1 / 5)
