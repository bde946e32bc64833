import logging
from typing import Any

import httpx
import pytest

from app.http.routes import build_app
from app.protocol.api_settings import ApiSettings
from app.telemetry.telemetry import Gathered, Telemetry, TelemetryOptions
from tests.app.text.tokenizers import chatml_tokenizer
from tests.fakes.scripted_engine import FakeEngineClient


async def put(body: Any) -> tuple[httpx.Response, list[tuple[str, float]]]:
    """Answer to a body, and what other replicas were asked to do."""
    reached: list[tuple[str, float]] = []

    async def set_levels(level: str, ttl_s: float) -> None:
        reached.append((level, ttl_s))

    async def nobody() -> Gathered:
        return Gathered()

    telemetry = Telemetry(
        TelemetryOptions(model_name="tiny"), replica="i", gather=nobody, set_levels=set_levels
    )
    settings = ApiSettings(model_id="tiny", created_s=0, max_model_len=64, vocab_size=500)
    app = build_app(FakeEngineClient([]), chatml_tokenizer(), settings, telemetry)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        content = body if isinstance(body, bytes) else None
        kind: dict[str, Any] = {"content": content} if content is not None else {"json": body}
        response = await http.put("/admin/log-level", **kind)
    try:
        if response.status_code == 200:
            expected = getattr(logging, reached[0][0].upper())
            assert logging.getLogger("app").level == logging.getLogger("engine").level == expected
    finally:
        telemetry.close()
    return response, reached


async def test_every_process_is_told_the_level_and_for_how_long() -> None:
    before = logging.getLogger("app").level
    response, reached = await put({"level": "debug", "ttl_s": 60})
    assert response.json() == {"level": "debug", "ttl_s": 60}
    assert reached == [("debug", 60.0)]
    assert logging.getLogger("app").level == before


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", {}, {"level": "loud"}, {"level": 10}, {"level": "info", "ttl_s": 0},
        {"level": "info", "ttl_s": True}, {"level": "info", "ttl_s": 1e9},
        {"level": "info", "ttl_s": "5"}, {"level": "info", "for": 5}, b"x" * 2000,
    ],
    ids=str,
)  # fmt: skip
async def test_what_is_no_level_or_no_time_is_refused(body: Any) -> None:
    response, reached = await put(body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_value"
    assert reached == []
