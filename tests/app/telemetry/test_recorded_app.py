import asyncio
from typing import Any

import pytest

from app.http.routes import build_app
from app.protocol.api_settings import ApiSettings
from app.telemetry.recorded_app import RecordedApp
from app.telemetry.request_record import GONE, RequestRecord
from app.telemetry.telemetry import Gathered, Telemetry, TelemetryOptions
from engine.errors import ReaderTooSlow
from tests.app.api.server import (
    CHAT,
    COMPLETIONS,
    chat_body,
    completion_body,
    in_process,
)
from tests.app.text.tokenizers import chatml_tokenizer
from tests.fakes.scripted_engine import FakeEngineClient, Script


async def nobody() -> Gathered:
    return Gathered()


async def ignore(level: str, ttl_s: float) -> None:
    pass


def recorded(scripts: list[Script]) -> tuple[Any, list[RequestRecord]]:
    """An application, and the records of its requests."""
    telemetry = Telemetry(
        TelemetryOptions(model_name="tiny"), replica="i", gather=nobody, set_levels=ignore
    )
    records: list[RequestRecord] = []
    telemetry.sinks = (*telemetry.sinks, records.append)
    tokenizer = chatml_tokenizer()
    settings = ApiSettings(
        model_id="tiny", created_s=0, max_model_len=512, vocab_size=len(tokenizer.vocabulary)
    )
    return build_app(FakeEngineClient(scripts), tokenizer, settings, telemetry), records


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"), [(COMPLETIONS, completion_body()), (CHAT, chat_body())], ids=["text", "chat"]
)
async def test_what_an_answer_says_is_in_its_record(
    path: str, body: dict[str, Any], stream: bool
) -> None:
    app, records = recorded([Script([5, 6, 7])])
    async with in_process(app) as http:
        response = await http.post(path, json=body | {"max_tokens": 3, "stream": stream})
    assert response.status_code == 200
    [record] = records
    assert (record.route, record.code, record.is_stream) == (path, 200, stream)
    assert record.is_generation
    assert record.request_id == response.headers["x-request-id"]
    assert record.num_output_tokens == sum(each.num_tokens for each in record.choices.values()) == 3
    if not stream:
        usage = response.json()["usage"]
        assert record.num_prompt_tokens == usage["prompt_tokens"]
        assert record.num_output_tokens == usage["completion_tokens"]
    assert record.arrived_s < record.read_s < record.submitted_s < record.ended_s
    assert record.first_token_s is not None


async def test_paths_of_no_route_and_refusals_are_recorded() -> None:
    app, records = recorded([])
    async with in_process(app) as http:
        await http.get("/v1/nothing/here")
        await http.post(COMPLETIONS, content=b"{")
        await http.get("/v1/prefixes/some-name")
        await http.get("/live")
    assert [(record.route, record.code) for record in records] == [
        ("other", 404),
        (COMPLETIONS, 415),
        ("/v1/prefixes/{name}", 404),
        ("/live", 200),
    ]
    assert [record.outcome for record in records if record.is_generation] == ["refused"]


async def test_a_client_that_goes_away_leaves_a_record() -> None:
    records: list[RequestRecord] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        pass

    scope = {"type": "http", "method": "GET", "headers": []}
    wrapped = RecordedApp(app, [records.append])
    task = asyncio.ensure_future(wrapped(scope, send, send))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [record.code for record in records] == [GONE]


@pytest.mark.parametrize(
    ("waits_s", "leaves_after_s", "outcome"),
    [
        # the last part found no room until the connection ended
        ((0.0, 6.0), 0.5, "slow"),
        # it has read all that came not long before
        ((0.0, 4.0), 0.0, "disconnect"),
        # it was slow once, read on, and went away later
        ((6.0, 0.0), 60.0, "disconnect"),
    ],
)
async def test_a_client_that_does_not_read_is_told_from_one_that_leaves(
    monkeypatch: pytest.MonkeyPatch,
    waits_s: tuple[float, ...],
    leaves_after_s: float,
    outcome: str,
) -> None:
    records: list[RequestRecord] = []
    now_s, waits = 0.0, [0.0, *waits_s]
    monkeypatch.setattr("app.telemetry.recorded_app.time.perf_counter", lambda: now_s)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal now_s
        scope["state"]["record"].is_generation = True
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in waits_s:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        now_s += leaves_after_s
        raise ConnectionResetError

    async def send(message: Any) -> None:
        nonlocal now_s
        now_s += waits.pop(0)

    scope = {"type": "http", "method": "GET", "headers": []}
    with pytest.raises(ConnectionResetError):
        await RecordedApp(app, [records.append])(scope, send, send)  # type: ignore[arg-type]
    assert [record.outcome for record in records] == [outcome]


async def test_an_answer_of_which_too_much_waits_to_be_read_ends_as_slow() -> None:
    app, records = recorded([Script([5, 6, 7], error=ReaderTooSlow("too much waits"), error_at=2)])
    async with in_process(app) as http:
        await http.post(COMPLETIONS, json=completion_body() | {"max_tokens": 5, "stream": True})
    assert [(record.has_failed, record.outcome) for record in records] == [(True, "slow")]
