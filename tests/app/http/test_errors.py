"""Every error has one status and one code, and says no more than a client may know."""

import json
import logging

import pytest
from starlette.exceptions import HTTPException

from app.http.errors import HttpError, describe, describe_broken_stream
from app.protocol.errors import ModelNotFound, UnknownParameter
from engine.errors import (
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    Overloaded,
    PromptTooLong,
    RequestCrashes,
    WorkerDied,
)


@pytest.mark.parametrize(
    ("error", "status", "code", "kind"),
    [
        (HttpError(415, "unsupported_media_type", "x"), 415, "unsupported_media_type", "invalid"),
        (HTTPException(404), 404, "unknown_url", "invalid"),
        (HTTPException(405), 405, "method_not_allowed", "invalid"),
        (Overloaded("full", retry_after_s=1), 429, "queue_full", "rate_limit"),
        (ModelNotFound("x", param="model"), 404, "model_not_found", "invalid"),
        (UnknownParameter("x", param="y"), 400, "unknown_parameter", "invalid"),
        (PromptTooLong("x", param="y", limit=1, got=2), 400, "context_length_exceeded", "invalid"),
        (EngineError("inner words"), 503, "engine_unavailable", "server"),
        (RequestCrashes("inner words"), 500, "request_crashes", "server"),
        (WorkerDied("inner words"), 503, "engine_unavailable", "server"),
        (ZeroDivisionError("inner words"), 500, "internal_error", "server"),
    ],
)
def test_an_error_has_one_status_and_one_code(
    error: Exception, status: int, code: str, kind: str
) -> None:
    answer = describe(error)
    assert (answer.status, answer.code) == (status, code)
    shown = json.loads(answer.to_json())["error"]
    assert (shown["code"], shown["type"].startswith(kind)) == (code, True)
    assert "inner words" not in shown["message"]


def test_the_field_at_fault_is_named() -> None:
    shown = json.loads(describe(InvalidRequest("why", param="top_p")).to_json())
    assert (shown["error"]["param"], shown["error"]["message"]) == ("top_p", "why")


@pytest.mark.parametrize(
    ("wait_s", "seconds", "milliseconds"),
    [(1.5, "2", "1500"), (-1.0, "0", "0"), (1e6, "120", "120000")],
)
def test_a_full_queue_says_when_to_come_back(
    wait_s: float, seconds: str, milliseconds: str
) -> None:
    headers = describe(Overloaded("full", retry_after_s=wait_s)).headers
    assert headers == {"retry-after": seconds, "retry-after-ms": milliseconds}
    headers = describe(EngineUnavailable("starting", retry_after_s=wait_s)).headers
    assert headers == {"retry-after": seconds, "retry-after-ms": milliseconds}


def test_headers_of_an_error_are_kept() -> None:
    closing = HttpError(413, "body_too_large", "x", headers={"connection": "close"})
    assert describe(closing).headers == {"connection": "close"}
    assert describe(HTTPException(405, headers={"allow": "GET"})).headers == {"allow": "GET"}


def test_an_engine_that_fails_half_way_has_generated_something() -> None:
    answer = describe_broken_stream(EngineError("inner words"))
    assert (answer.status, answer.code) == (503, "engine_failed")
    assert "nothing was generated" not in answer.message
    assert describe_broken_stream(ZeroDivisionError()).code == "internal_error"


def test_only_our_own_mistakes_are_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        describe(InvalidRequest("why", param="top_p"))
        describe(EngineError("inner words"))
        assert caplog.records == []
        describe(ZeroDivisionError("inner words"))
    [record] = caplog.records
    assert record.exc_info is not None


def test_a_message_has_an_end() -> None:
    shown = json.loads(describe(InvalidRequest("x" * 5000, param="y")).to_json())
    assert len(shown["error"]["message"]) == 1000


async def test_an_answer_says_how_long_it_is() -> None:
    sent: list[dict[str, object]] = []

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        sent.append(message)

    answer = describe(HttpError(413, "body_too_large", "x", headers={"connection": "close"}))
    await answer.send(send)
    start, body = sent
    assert start["status"] == 413
    assert start["headers"] == [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(answer.to_json())).encode()),
        (b"connection", b"close"),
    ]
    assert body["body"] == answer.to_json()


def test_clients_are_asked_not_to_repeat_a_request_that_ends_engines() -> None:
    assert describe(RequestCrashes("x")).headers == {"x-should-retry": "false"}
    assert describe_broken_stream(RequestCrashes("x")).code == "request_crashes"
    assert describe_broken_stream(WorkerDied("x")).code == "engine_failed"
