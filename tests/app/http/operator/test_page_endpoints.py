import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.http.routes import build_app
from app.protocol.api_settings import ApiSettings
from app.telemetry.telemetry import Gathered, Telemetry, TelemetryOptions
from app.ui.files import HEADERS, page_files
from app.ui.page_options import PageOptions
from tests.app.api.server import serving
from tests.app.http.operator.test_access import digests, ignore
from tests.app.text.tokenizers import chatml_tokenizer
from tests.app.ui.views import ScriptedViews, snapshot_of_two_tenants, view_of
from tests.fakes.scripted_engine import FakeEngineClient

ALICE, OPERATOR = "alice-key", "operator-key"
KEYS: dict[str, Any] = {
    "api_key_sha256": digests(ALICE, "bob-key"),
    "operator_key_sha256": digests(OPERATOR),
}
PAGE = PageOptions(max_viewers=1, facts={"model": "tiny"}, settings=(("dtype", '"auto"', True),))


async def nobody() -> Gathered:
    return Gathered()


def app_of(page: PageOptions | None = PAGE, **settings: Any) -> Any:
    telemetry = Telemetry(
        TelemetryOptions(model_name="tiny", page=page),
        replica="i",
        gather=nobody,
        set_levels=ignore,
        views=ScriptedViews(view_of(snapshot_of_two_tenants())),
    )
    options: dict[str, Any] = {"model_id": "tiny", "created_s": 0, "max_model_len": 64}
    api = ApiSettings(**options, vocab_size=500, **settings)
    return build_app(FakeEngineClient([]), chatml_tokenizer(), api, telemetry)


async def ask(
    path: str,
    method: str = "GET",
    body: Any = None,
    page: PageOptions | None = PAGE,
    **caller: Any,
) -> httpx.Response:
    """The answer to a request that ends by itself.

    Args:
        caller: key, headers, client and host of the request; what else there is are settings.
    """
    key, headers = caller.pop("key", ""), dict(caller.pop("headers", {}))
    client, host = caller.pop("client", "127.0.0.1"), caller.pop("host", "127.0.0.1:8000")
    if key:
        headers["authorization"] = f"Bearer {key}"
    transport = httpx.ASGITransport(app_of(page, **caller), client=(client, 1234))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as http:
        return await http.request(method, path, headers=headers, json=body)


@pytest.mark.parametrize("settings", [{}, KEYS])
async def test_the_address_of_the_server_leads_to_the_page(settings: dict[str, Any]) -> None:
    answer = await ask("/", **settings)
    assert (answer.status_code, answer.headers["location"]) == (307, "/ui")
    assert (await ask("/", page=None)).status_code == 404


@asynccontextmanager
async def frames(
    http: httpx.AsyncClient, key: str = "", query: str = ""
) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with http.stream("GET", f"/ui/api/stream{query}", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")

        async def read() -> AsyncIterator[tuple[str, Any]]:
            name = ""
            async for line in response.aiter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield name, json.loads(line.removeprefix("data: "))

        yield read()


@pytest.mark.parametrize("settings", [{}, KEYS], ids=["no keys", "keys"])
async def test_the_page_needs_no_key_and_has_a_strict_policy(settings: dict[str, Any]) -> None:
    for path in ("/ui", *(f"/ui/{name}" for name in page_files())):
        response = await ask(path, client="10.0.0.7", **settings)
        assert response.status_code == 200, path
        for name, value in HEADERS.items():
            assert response.headers[name] == value
    assert "<!doctype html>" in (await ask("/ui")).text


async def test_a_file_that_has_not_changed_is_not_sent_again() -> None:
    etag = (await ask("/ui/app.js")).headers["etag"]
    response = await ask("/ui/app.js", headers={"if-none-match": etag})
    assert response.status_code == 304
    assert response.content == b""


@pytest.mark.parametrize("path", ["/ui/none.js", "/ui/..%2fconfig.py", "/ui/", "/ui/api/none"])
async def test_there_is_nothing_else(path: str) -> None:
    assert (await ask(path)).status_code == 404


async def test_a_page_that_is_switched_off_is_not_there() -> None:
    assert (await ask("/ui", page=None)).status_code == 404
    assert (await ask("/ui/api/stream", page=None)).status_code == 404


async def test_operators_see_all_and_tenants_their_own() -> None:
    settings = KEYS | {"api_key_sha256": (b"alice's key" * 3, *digests(ALICE))}
    async with serving(app_of(PageOptions(max_viewers=8), **settings)) as http:
        async with frames(http, OPERATOR) as read:
            seen = [await anext(read), await anext(read)]
        assert [name for name, _ in seen] == ["hello", "frame"]
        assert seen[0][1]["is_operator"] is True
        assert seen[1][1]["replicas"][0]["requests"] == ["b", "c", "d"]
        async with frames(http, ALICE) as read:
            seen = [await anext(read), await anext(read)]
        assert seen[0][1]["is_operator"] is False
        assert seen[1][1]["replicas"][0]["requests"] == []


async def test_one_viewer_too_many_hears_what_to_do() -> None:
    async with serving(app_of()) as http, frames(http) as read:
        await anext(read)
        response = await http.get("/ui/api/stream")
        assert response.status_code == 503
        assert "ui.max_viewers" in response.json()["error"]["message"]
        assert response.headers["retry-after"]


@pytest.mark.parametrize("hz", ["0", "-1", "nan", "inf", "fast"])
async def test_a_rate_that_is_none_is_refused(hz: str) -> None:
    response = await ask(f"/ui/api/stream?hz={hz}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "hz"


@pytest.mark.parametrize("path", ["/ui/api/stream", "/ui/api/settings"])
async def test_with_keys_strangers_see_no_numbers(path: str) -> None:
    for key in ("", "wrong"):
        response = await ask(path, key=key, **KEYS)
        assert response.status_code == 401
        assert "operator" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "change",
    [{"host": "evil.example:8000"}, {"headers": {"sec-fetch-site": "cross-site"}}],
    ids=["another name", "another origin"],
)
async def test_without_keys_no_other_page_may_look(change: dict[str, Any]) -> None:
    response = await ask("/ui/api/settings", **change)
    assert response.status_code == 403
    assert response.json()["error"]["code"] in ("not_local", "other_origin")


@pytest.mark.parametrize(
    "change",
    [
        {"sees_clients": False}, {"client": "10.0.0.7"},
        {"headers": {"x-forwarded-for": "1.2.3.4"}}, {"operator_key_sha256": digests(OPERATOR)},
        {"key": ALICE, **KEYS},
    ],
    ids=["HAProxy", "another machine", "a proxy", "without the operator's key", "a tenant"],
)  # fmt: skip
async def test_settings_and_stress_are_for_operators(change: dict[str, Any]) -> None:
    for method, path in (("GET", "settings"), ("POST", "stress"), ("DELETE", "stress")):
        response = await ask(f"/ui/api/{path}", method=method, **change)
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "operators_only"


@pytest.mark.parametrize("change", [{}, {"key": OPERATOR, "host": "llm.example", **KEYS}])
async def test_an_operator_sees_the_settings(change: dict[str, Any]) -> None:
    response = await ask("/ui/api/settings", **change)
    row = {"name": "dtype", "value": '"auto"', "is_default": True}
    assert response.json() == {"settings": [row]}


async def test_a_burst_is_begun_and_ended() -> None:
    response = await ask("/ui/api/stress", method="POST", body={"requests": 1, "seconds": 0.01})
    assert response.json() == {"requests": 1, "seconds": 0.01}
    assert (await ask("/ui/api/stress", method="DELETE")).json() == {"requests": 0}


@pytest.mark.parametrize(
    "body",
    [
        {"requests": 33}, {"requests": 0}, {"requests": True}, {"requests": "8"}, {"seconds": 21},
        {"seconds": 0}, {"seconds": "5"}, {"prompt": "x"}, [],
    ],
    ids=str,
)  # fmt: skip
async def test_a_burst_that_is_too_large_or_something_else_is_refused(body: Any) -> None:
    response = await ask("/ui/api/stress", method="POST", body=body)
    assert response.status_code == 400
