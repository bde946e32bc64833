import hashlib
from typing import Any

import httpx
import pytest

from app.http.errors import HttpError
from app.http.operator.access import OperatorAccess
from app.http.routes import build_app
from app.protocol.api_settings import ApiSettings
from app.telemetry.telemetry import Gathered, Telemetry, TelemetryOptions
from app.ui.audience import Audience
from tests.app.text.tokenizers import chatml_tokenizer
from tests.fakes.scripted_engine import FakeEngineClient, Script

TENANT, OPERATOR = "tenant-key", "operator-key"


def digests(*keys: str) -> tuple[bytes, ...]:
    return tuple(hashlib.sha256(key.encode()).digest() for key in keys)


async def ignore(level: str, ttl_s: float) -> None:
    pass


async def nobody() -> Gathered:
    return Gathered()


async def status(
    path: str = "/metrics",
    *,
    key: str | None = None,
    client: str = "127.0.0.1",
    headers: dict[str, str] | None = None,
    **settings: Any,
) -> tuple[int, str]:
    """Status and text of a request."""
    telemetry = Telemetry(
        TelemetryOptions(model_name="tiny"), replica="i", gather=nobody, set_levels=ignore
    )
    options: dict[str, Any] = {"model_id": "tiny", "created_s": 0, "max_model_len": 64}
    app = build_app(
        FakeEngineClient([Script([5])]),
        chatml_tokenizer(),
        ApiSettings(**options, vocab_size=500, **settings),
        telemetry,
    )
    given = dict(headers or {})
    if key is not None:
        given["authorization"] = f"Bearer {key}"
    transport = httpx.ASGITransport(app, client=(client, 1234))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        response = await http.get(path, headers=given)
    return response.status_code, response.text


@pytest.mark.parametrize("client", ["127.0.0.1", "::1"])
async def test_without_keys_the_machine_itself_may_look(client: str) -> None:
    code, text = await status(client=client)
    assert code == 200
    assert "pagoda_http_requests_total" not in text or "# TYPE" in text


@pytest.mark.parametrize("client", ["10.0.0.7", "8.8.8.8", "testclient", ""])
async def test_without_keys_nobody_else_may(client: str) -> None:
    code, text = await status(client=client)
    assert code == 404
    assert "unknown_url" in text


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "x-real-ip", "via"])
async def test_what_came_through_something_in_between_is_not_of_this_machine(header: str) -> None:
    assert (await status(headers={header: "10.0.0.7"}))[0] == 404


async def test_where_clients_cannot_be_seen_nobody_is_of_this_machine() -> None:
    assert (await status(sees_clients=False))[0] == 404


async def test_keys_of_tenants_never_open_what_is_of_all() -> None:
    settings: dict[str, Any] = {"api_key_sha256": digests(TENANT)}
    assert (await status(key=TENANT, **settings))[0] == 404
    assert (await status(**settings))[0] == 404
    assert (await status("/v1/models", key=TENANT, **settings))[0] == 200


async def test_keys_of_operators_open_it_from_anywhere_and_nothing_else() -> None:
    settings: dict[str, Any] = {
        "api_key_sha256": digests(TENANT),
        "operator_key_sha256": digests(OPERATOR),
    }
    assert (await status(key=OPERATOR, client="10.0.0.7", **settings))[0] == 200
    for key in (None, TENANT, "other"):
        assert (await status(key=key, **settings))[0] == 401
    assert (await status("/v1/models", key=OPERATOR, **settings))[0] == 401


async def test_with_keys_of_operators_only_the_machine_itself_needs_one_too() -> None:
    settings: dict[str, Any] = {"operator_key_sha256": digests(OPERATOR)}
    assert (await status(**settings))[0] == 401
    assert (await status(key=OPERATOR, **settings))[0] == 200
    assert (await status("/v1/models", **settings))[0] == 200


def audience(
    key: str = "",
    host: str = "127.0.0.1:8000",
    client: str = "127.0.0.1",
    *,
    tenants: tuple[str, ...] = (),
    operators: tuple[str, ...] = (),
    **headers: str,
) -> Audience:
    """Who looks at the page, by the headers of a request."""
    given = {"host": host} | {name.replace("_", "-"): value for name, value in headers.items()}
    if key:
        given["authorization"] = f"Bearer {key}"
    raw = [(name.encode(), value.encode()) for name, value in given.items()]
    scope = {"type": "http", "headers": raw, "client": (client, 1234)}
    access = OperatorAccess(digests(*operators), digests(*tenants))
    return access.audience(scope, digests(*tenants))


def test_a_key_shows_what_is_its_tenants() -> None:
    keys: dict[str, Any] = {"tenants": (TENANT, "other"), "operators": (OPERATOR,)}
    [digest] = digests(TENANT)
    assert audience(TENANT, "llm.example", "8.8.8.8", **keys) == Audience(digest)
    assert audience(OPERATOR, "llm.example", "8.8.8.8", **keys).is_operator
    for key in ("", "wrong"):
        with pytest.raises(HttpError) as refusal:
            audience(key, **keys)
        assert refusal.value.status == 401


def test_without_keys_all_are_one_tenant_and_the_machine_itself_is_the_operator() -> None:
    assert audience().is_operator
    assert audience(host="localhost:8000", sec_fetch_site="same-origin").is_operator
    assert audience(host="[::1]:8000", client="::1").is_operator
    assert audience(client="10.0.0.7") == Audience(b"")
    assert audience(x_forwarded_for="10.0.0.7") == Audience(b"")
    assert audience(operators=(OPERATOR,)) == Audience(b"")
    assert audience(OPERATOR, operators=(OPERATOR,)).is_operator


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"}, {"host": "127.0.0.1.evil.example:8000"}, {"host": ""},
        {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"},
    ],
    ids=str,
)  # fmt: skip
def test_without_keys_only_the_servers_own_page_may_look(headers: dict[str, Any]) -> None:
    with pytest.raises(HttpError) as refusal:
        audience(**headers)
    assert refusal.value.status == 403
