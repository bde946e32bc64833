"""The command `deterministic` on the tiny model, and what it takes for a difference."""

import json
from pathlib import Path

import pytest

from engine.types import float32, int32
from load_tests.__main__ import main
from load_tests.bench.in_process.arrangements import Answers, ChoiceAnswer, RequestAnswer

_SMALL = ["--requests", "6", "--batch", "3", "--longest-input", "40", "--output-len", "12"]


def _answers(*answers: RequestAnswer) -> Answers:
    return Answers(answers=list(answers), wall_s=2.0, num_swapped=0, num_recomputed=0)


def test_every_arrangement_is_compared_with_one_by_one(tmp_path: Path) -> None:
    assert main(["deterministic", *_SMALL, "--output", str(tmp_path), "--log"]) == 0
    [path] = tmp_path.glob("*.json")
    document = json.loads(path.read_text())
    arrangements = document["arrangements"]
    assert [a["differing"] for a in arrangements.values()] == [[]] * 5
    assert arrangements["swapped"]["swapped"] > 0
    assert arrangements["recomputed"]["recomputed"] > 0
    assert set(document["price"]) == {"batch", "one by one"}
    assert "6 requests with the same bits one by one" in (tmp_path / "LOG.md").read_text()


@pytest.mark.slow
def test_all_kinds_of_requests_are_compared(tmp_path: Path) -> None:
    words = ["--mixed", "--requests", "9", "--batch", "8", "--longest-input", "40"]
    assert main(["deterministic", *words, "--output-len", "12", "--output", str(tmp_path)]) == 0


def test_an_arrangement_without_preemptions_is_no_success(tmp_path: Path) -> None:
    words = ["--requests", "2", "--batch", "2", "--longest-input", "8", "--output-len", "1"]
    assert main(["deterministic", *words, "--output", str(tmp_path)]) == 1
    [path] = tmp_path.glob("*.json")
    assert len(json.loads(path.read_text())["faults"]) == 2


def _answer(logprobs: list[float]) -> RequestAnswer:
    return RequestAnswer({0: ChoiceAnswer(int32([4, 5]), float32(logprobs))})


def test_one_bit_of_a_log_probability_is_a_difference() -> None:
    own = _answer([-1.0, -2.0])
    same = _answer([-1.0, -2.0])
    near = _answer([-1.0, -2.0000002])
    assert _answers(own, own).differing(_answers(same, near)) == [1]
    assert _answers(own, own, own).differing(_answers(same)) == []
    assert _answers(own, near).tokens_per_s == 2.0
