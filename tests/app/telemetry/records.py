"""Records of requests that have ended."""

from typing import Any

from app.telemetry.request_record import ChoiceTimes, RequestRecord


def ended(seconds: float = 1.0, **fields: Any) -> RequestRecord:
    """A streamed completion of two choices that went well."""
    defaults: dict[str, Any] = {
        "request_id": "id-1",
        "method": "POST",
        "route": "/v1/completions",
        "code": 200,
        "is_generation": True,
        "is_stream": True,
        "arrived_s": 100.0,
        "arrived_us": 1_000_000_000,
        "ended_s": 100.0 + seconds,
        "read_s": 100.0 + 0.1 * seconds,
        "submitted_s": 100.0 + 0.2 * seconds,
        "num_candidates": 2,
        "num_prompt_tokens": 7,
        "num_output_tokens": 10,
        "choices": {
            0: ChoiceTimes(num_tokens=9, first_s=100.25, last_s=101.05, reason="stop"),
            1: ChoiceTimes(num_tokens=1, first_s=100.5, last_s=100.5, reason="stop"),
        },
    }
    return RequestRecord(**(defaults | fields))
