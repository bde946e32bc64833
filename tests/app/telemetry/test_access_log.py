import logging

import pytest

from app.telemetry.access_log import MAX_LINES_PER_S, AccessLog
from tests.app.telemetry.records import ended


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "app.telemetry.access_log")


def test_a_generation_is_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    AccessLog().take(ended(1.25, key="0123abcd"))
    [line] = caplog.messages
    assert line == (
        "generation id=id-1 api=/v1/completions status=200 outcome=stop ms=1250 prompt=7 cached=0 "
        "out=10 n=2 preempted=0 key=0123abcd trace=-"
    )
    assert len(line) <= 300


def test_other_requests_have_none(caplog: pytest.LogCaptureFixture) -> None:
    AccessLog().take(ended(is_generation=False))
    assert caplog.messages == []


def test_ids_are_fields_of_their_own_for_logs_in_json(caplog: pytest.LogCaptureFixture) -> None:
    AccessLog().take(ended(trace_id="ab" * 16))
    [record] = caplog.records
    assert record.__dict__["trace_id"] == "ab" * 16
    assert record.__dict__["pagoda_request_id"] == "id-1"


def test_lines_beyond_what_a_log_can_take_are_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [5.0]
    monkeypatch.setattr("app.telemetry.access_log.time.monotonic", lambda: now_s[0])
    log = AccessLog()
    for _ in range(MAX_LINES_PER_S + 7):
        log.take(ended())
    assert len(caplog.messages) == MAX_LINES_PER_S
    now_s[0] = 6.0
    log.take(ended())
    assert caplog.messages[-1].endswith(" suppressed=7")
    log.take(ended())
    assert "suppressed" not in caplog.messages[-1]
