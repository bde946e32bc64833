"""Damaged bodies: no crash, no hang, no answer that blames the server, every error enveloped."""

import json

import pytest

from tests.app.api.direct import Answer
from tests.app.fuzz.mutator import Mutator
from tests.app.fuzz.run import faults_of, run, shown

SEED = 20_261_130
NUM_BODIES, NUM_PARTS = 100_000, 5


# the first for each run, the others for where time is no matter
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, NUM_PARTS))]
)
def test_damaged_bodies_are_served_or_refused(part: int) -> None:
    size = NUM_BODIES // NUM_PARTS
    outcome = run(SEED, range(part * size, (part + 1) * size))
    assert not shown(outcome, Mutator(SEED))
    assert outcome.statuses.total() == size
    # damage of every depth: some bodies are still valid
    assert outcome.statuses["parsed"] > size // 10
    assert outcome.statuses["200"] > size // 100


def test_a_number_makes_the_same_body_again() -> None:
    assert [Mutator(7).make(n) for n in range(50)] == [Mutator(7).make(n) for n in range(50)]
    assert Mutator(7).make(0) != Mutator(8).make(0)


ERROR = {"message": "m", "type": "server_error", "param": None, "code": "internal_error"}
JSON = {"content-type": "application/json", "x-request-id": "r"}
STREAM = {"content-type": "text/event-stream", "x-request-id": "r"}
FAULTY = [
    (500, JSON, {"error": ERROR}, "status 500"),
    (503, JSON, {"error": ERROR}, "status 503"),
    (400, JSON, {"detail": "m"}, "another envelope"),
    (400, JSON, {"error": {**ERROR, "message": "m" * 1001}}, "no short message"),
    (400, JSON, {"error": {**ERROR, "code": None}}, "no short message or no code"),
    (400, JSON, {"error": {**ERROR, "message": "Traceback"}}, "Traceback"),
    (400, {"content-type": "text/plain", "x-request-id": "r"}, {}, "no JSON"),
    (200, {"content-type": "application/json"}, {}, "no request id"),
]


@pytest.mark.parametrize(("status", "headers", "content", "wrong"), FAULTY, ids=str)
def test_what_is_wrong_with_an_answer_is_found(
    status: int, headers: dict[str, str], content: object, wrong: str
) -> None:
    answer = Answer(status=status, headers=headers, body=json.dumps(content).encode())
    assert any(wrong in found for found in faults_of("/v1/completions", answer))


def test_a_stream_that_ends_by_the_server_s_error_is_found() -> None:
    data = json.dumps({"error": ERROR}).encode()
    answer = Answer(status=200, headers=STREAM, body=b"data: {}\n\ndata: " + data + b"\n\n")
    assert faults_of("/v1/completions", answer)
