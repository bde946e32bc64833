"""Metrics of an ingress beside the answers that it gave, of all kinds of requests."""

from typing import Any

import pytest

from app.http.routes import build_app
from app.protocol.api_settings import ApiSettings
from app.telemetry.request_record import RequestRecord
from app.telemetry.telemetry import Gathered, Telemetry, TelemetryOptions
from engine.types import EventKind
from tests.app.api.answers import BODIES as ASKED
from tests.app.api.answers import post
from tests.app.api.server import CHAT, COMPLETIONS, MAX_MODEL_LEN, in_process
from tests.app.telemetry.test_exposition import samples
from tests.app.text.tokenizers import chatml_tokenizer
from tests.fakes.inline_engine import InlineEngineClient

SECRET = "canary"
MESSAGES = [{"role": "user", "content": SECRET}]
BODIES: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": SECRET, "max_tokens": 5}),
    (COMPLETIONS, {"prompt": [SECRET, "other"], "max_tokens": 4, "n": 2, "temperature": 1}),
    (COMPLETIONS, {"prompt": SECRET, "max_tokens": 4, "best_of": 3, "n": 1, "temperature": 1}),
    (COMPLETIONS, {"prompt": SECRET, "max_tokens": 4, "n": 3, "temperature": 0}),
    (
        COMPLETIONS,
        {"prompt": SECRET, "max_tokens": 4, "n": 2, "use_beam_search": True, "best_of": 2},
    ),
    (CHAT, {"messages": MESSAGES, "max_tokens": 6}),
    (CHAT, {"messages": MESSAGES, "max_tokens": 6, "stop": [SECRET]}),
    (COMPLETIONS, {"prompt": SECRET, "max_tokens": -1}),
    (COMPLETIONS, {"prompt": "x" * 5000, "max_tokens": 1}),
]


async def nobody() -> Gathered:
    return Gathered()


async def ignore(level: str, ttl_s: float) -> None:
    pass


async def test_metrics_agree_with_the_answers(client: InlineEngineClient) -> None:
    telemetry = Telemetry(
        TelemetryOptions(model_name="tiny"), replica="i", gather=nobody, set_levels=ignore
    )
    records: list[RequestRecord] = []
    telemetry.sinks = (*telemetry.sinks, records.append)
    tokenizer = chatml_tokenizer()
    settings = ApiSettings(
        model_id="tiny",
        created_s=0,
        max_model_len=MAX_MODEL_LEN,
        vocab_size=len(tokenizer.vocabulary),
    )
    usages, num_refused = [], 0
    async with in_process(build_app(client, tokenizer, settings, telemetry)) as http:
        for path, body in BODIES:
            response = await http.post(path, json=body)
            if response.status_code == 200:
                usages.append(response.json()["usage"])
            else:
                num_refused += 1
    text = await telemetry.scrape()
    found = samples(text)

    def total(name: str, label: str = "") -> float:
        return sum(
            value
            for key, value in found.items()
            if key[0] == f"pagoda_{name}" and (not label or label in key)
        )

    assert total("requests_total") == len(BODIES)
    assert total("requests_total", "outcome=refused") == num_refused == 2
    assert total("output_tokens_total") == sum(each["completion_tokens"] for each in usages)
    assert total("request_prompt_tokens_sum") == sum(each["prompt_tokens"] for each in usages)
    with_tokens = sum(each["completion_tokens"] > 0 for each in usages)
    assert total("time_to_first_token_seconds_count") == total("e2e_seconds_count") == with_tokens
    assert total("choice_output_tokens_sum") == total("output_tokens_total")
    # each prompt that an engine had, from its queue to its first token at least
    for record in records:
        for events in record.events:
            kinds = [kind for kind, _ in events]
            assert kinds[:3] == [EventKind.QUEUED, EventKind.ADMITTED, EventKind.PREFILLED]
    assert SECRET.encode() not in text
    assert not [record for record in records if SECRET in repr(record)]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("options", [{}, {"stream": True}, "usage"], ids=str)
async def test_an_answer_says_what_happened_to_it_if_it_is_asked(
    client: InlineEngineClient, path: str, options: Any
) -> None:
    if options == "usage":
        options = {"stream": True, "stream_options": {"include_usage": True}}
    answer = await post(client, path, ASKED[path](include_metrics=True, max_tokens=4, **options))
    *before, last = answer if isinstance(answer, list) else [answer]
    assert not any("metrics" in chunk for chunk in before)
    assert bool(last["choices"]) == (not options)
    assert bool(last.get("usage")) == (options != {"stream": True})
    found = last["metrics"]
    happened = [each["event"] for each in found["events"]]
    assert happened[:3] == ["queued", "admitted", "prefilled"]
    phases = (found[f"{name}_s"] for name in ("queue", "prefill", "decode", "preempted"))
    # the clock of this engine is another one
    assert 0 <= found["time_to_first_token_s"] <= found["total_s"]
    assert sum(phases) <= found["total_s"] + 1e-5
    assert found["preemptions"] == {"swap": 0, "recompute": 0}
    assert found["peak_blocks"] > 0
    silent = await post(client, path, ASKED[path](max_tokens=4, **options))
    assert not any("metrics" in each for each in (silent if before else [silent]))
