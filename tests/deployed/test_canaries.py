"""Nothing that clients send or get is in any file of the server, in metrics or in errors."""

from typing import Any

import httpx
import pytest

from tests.app.api.server import CHAT, COMPLETIONS
from tests.deployed.serve_run import CANARY, KEY, Deployed, leaks

pytestmark = pytest.mark.ray

JSON = {"content-type": "application/json"}


def canary(name: str) -> str:
    return f"{CANARY}-{name}"


HEADERS = {
    "authorization": f"Bearer {canary('key')}",
    "cookie": f"session={canary('cookie')}",
    "x-own-header": canary("header"),
    "user-agent": canary("agent"),
    "referer": f"http://{canary('referer')}/",
    "x-session-id": canary("session"),
    "tracestate": f"vendor={canary('state')}",
    # sampled: its trace is written
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}
MESSAGE = {"role": "user", "content": canary("message"), "name": canary("speaker")}
TOOL = {
    "type": "function",
    "function": {
        "name": canary("tool"),
        "description": canary("description"),
        "parameters": {"type": "object", "properties": {canary("property"): {"type": "string"}}},
    },
}
# what comes out is known: the only text that the answer may be
OUTPUT = canary("output")
CHOSEN: dict[str, Any] = {"guided_choice": [OUTPUT], "max_tokens": 12}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": canary("prompt"), **CHOSEN}),
    (COMPLETIONS, {"prompt": canary("prompt"), **CHOSEN, "stream": True}),
    (COMPLETIONS, {"prompt": canary("prompt"), "stop": [canary("stop")], "user": canary("user")}),
    (COMPLETIONS, {"prompt": canary("prompt"), "n": 2, "echo": True, "logprobs": 2}),
    (COMPLETIONS, {"prompt": canary("prompt"), "use_beam_search": True, "n": 2}),
    (COMPLETIONS, {"prompt": canary("prompt"), "bad_words": [canary("bad")]}),
    (CHAT, {"messages": [MESSAGE], "tools": [TOOL], "tool_choice": "required"}),
    (CHAT, {"messages": [MESSAGE], "metadata": {"note": canary("metadata")}}),
    (CHAT, {"messages": [MESSAGE], "prompt_cache_key": canary("cache"), "stream": True}),
]
REFUSED: list[tuple[str, bytes]] = [
    (COMPLETIONS, f'{{"prompt": "{canary("cut")}'.encode()),
    (COMPLETIONS, f'{{"prompt": [["{canary("nested")}"]]}}'.encode()),
    (COMPLETIONS, f'{{"prompt": "{canary("long")}", "max_tokens": "{canary("type")}"}}'.encode()),
    (COMPLETIONS, f'{{"prompt": "x", "guided_regex": "({canary("regex")}"}}'.encode()),
    (COMPLETIONS, f'{{"prompt": "x", "guided_json": {{"type": "{canary("kind")}"}}}}'.encode()),
    (CHAT, f'{{"messages": [{{"role": "{canary("role")}", "content": "x"}}]}}'.encode()),
    (CHAT, f'{{"messages": [{{"role": "user", "content": {{"{canary("part")}": 1}}}}]}}'.encode()),
    (COMPLETIONS, canary("no-json").encode()),
]


async def test_what_clients_send_and_get_is_written_nowhere(
    http: httpx.AsyncClient, odd: httpx.AsyncClient, deployed: Deployed
) -> None:
    outputs = []
    for path, body in BODIES:
        answer = await http.post(path, json={"max_tokens": 4, **body}, headers=HEADERS)
        assert answer.status_code in (200, 400), answer.text
        outputs.append(answer.text)
    # the canaries do come out, where they belong
    assert all("output" in text for text in outputs[:2]), outputs[:2]
    for path, content in REFUSED:
        for client in (http, odd):
            # of the second application with a key that it does not know
            answer = await client.post(path, content=content, headers=HEADERS | JSON)
            assert 400 <= answer.status_code < 500, answer.text
            if client is odd:
                assert CANARY not in answer.text
    await http.get(f"/{canary('path')}", params={canary("query"): canary("value")}, headers=HEADERS)
    await http.post(f"/v1/prefixes/{canary('prefix')}", json={"text": canary("pinned")})
    metrics = await http.get("/metrics")
    assert metrics.status_code == 200
    assert CANARY not in metrics.text
    assert KEY not in metrics.text
    control = deployed.folder / "ray" / "control"
    control.write_text(f"what is searched for: {CANARY}")
    assert len(leaks(deployed.folder)) == 1
    control.unlink()
    assert leaks(deployed.folder) == []
