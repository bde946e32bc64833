"""Headers as they leave the deployed server: Serve's proxy has read and written some by then."""

import asyncio
import re
from typing import Any

import httpx
import pytest

from tests.app.api.server import CHAT, COMPLETIONS
from tests.deployed.serve_run import ODD, PAGE, Deployed

pytestmark = pytest.mark.ray

ID = "x-request-id"
ANSWERED: dict[str, Any] = {"prompt": "x", "max_tokens": 2}
# method, path, body: plain, streamed and error answers of the application, and Serve's own
ANSWERS: list[tuple[str, str, Any]] = [
    ("POST", COMPLETIONS, ANSWERED),
    ("POST", COMPLETIONS, {**ANSWERED, "stream": True}),
    ("POST", COMPLETIONS, {**ANSWERED, "n": 3, "use_beam_search": True, "stream": True}),
    ("POST", COMPLETIONS, {**ANSWERED, "max_tokens": -1}),
    ("POST", CHAT, [1]),
    ("GET", "/v1/models", None),
    ("GET", "/live", None),
    ("GET", "/nope", None),
    ("DELETE", COMPLETIONS, None),
    ("POST", f"{ODD}{COMPLETIONS}", ANSWERED),
    ("GET", "/-/routes", None),
]
UNFIT = [b"<script>", b"x" * 5000, "ümlaut".encode(), b"a b", b"", b"\xff"]


async def ids_of(http: httpx.AsyncClient, *headers: tuple[bytes, bytes]) -> list[str]:
    """Return the request id of each kind of answer, which has one."""

    async def id_of(method: str, path: str, body: Any) -> str:
        response = await http.request(method, path, json=body, headers=list(headers))
        [given] = response.headers.get_list(ID)
        return given

    return await asyncio.gather(*(id_of(*answer) for answer in ANSWERS))


async def test_every_answer_has_one_request_id_of_its_own(http: httpx.AsyncClient) -> None:
    ids = await ids_of(http)
    assert all(re.fullmatch("[0-9a-f]{24}", given) for given in ids)
    assert len(set(ids)) == len(ANSWERS)


async def test_the_client_s_own_id_is_kept(http: httpx.AsyncClient) -> None:
    assert await ids_of(http, (ID.encode(), b"a.B_9-x")) == ["a.B_9-x"] * len(ANSWERS)


@pytest.mark.parametrize("unfit", UNFIT, ids=range(len(UNFIT)))
async def test_an_unfit_id_is_replaced(unfit: bytes, http: httpx.AsyncClient) -> None:
    ids = await ids_of(http, (ID.encode(), unfit))
    assert all(re.fullmatch("[0-9a-f]{24}", given) for given in ids)


async def test_two_ids_are_none(http: httpx.AsyncClient) -> None:
    ids = await ids_of(http, (ID.encode(), b"one"), (ID.encode(), b"two"))
    assert not {"one", "two"}.intersection(ids)


async def test_the_id_of_a_body_is_taken_where_the_header_gives_none(
    http: httpx.AsyncClient,
) -> None:
    body = {**ANSWERED, "request_id": "mine"}
    for headers, expected in ({}, "cmpl-mine"), ({ID: "<b>"}, "cmpl-mine"), ({ID: "h"}, "cmpl-h"):
        assert (await http.post(COMPLETIONS, json=body, headers=headers)).json()["id"] == expected


# what Serve takes from clients: its limit on time, replicas of choice
@pytest.mark.parametrize(
    "headers",
    [
        {"x-request-timeout-seconds": "0.0001"},
        {"X-Request-Timeout-Seconds": "1e-9"},
        {"x-session-id": "a"},
        {"x_session_id": "a"},
        {"serve_multiplexed_model_id": "a"},
        {"x-serve-router-replica-id": "a"},
    ],
    ids=str,
)
async def test_headers_meant_for_serve_have_no_effect(
    headers: dict[str, str], http: httpx.AsyncClient
) -> None:
    for stream in (False, True):
        body = {**ANSWERED, "stream": stream}
        response = await http.post(COMPLETIONS, json=body, headers=headers)
        assert response.status_code == 200, response.text


async def test_a_session_of_any_name_is_served(http: httpx.AsyncClient) -> None:
    # the last two are how our own router names replicas
    for session in ("talk-1", "not-replica:x", "replica:x"):
        given = {"x-session-id": session}
        assert (await http.post(COMPLETIONS, json=ANSWERED, headers=given)).status_code == 200


@pytest.mark.parametrize(("method", "path", "body"), ANSWERS[:9], ids=str)
async def test_a_page_may_read_every_answer(
    method: str, path: str, body: Any, http: httpx.AsyncClient
) -> None:
    response = await http.request(method, path, json=body, headers={"origin": PAGE})
    assert response.headers.get_list("access-control-allow-origin") == [PAGE]
    assert "Origin" in response.headers["vary"]
    assert ID in response.headers["access-control-expose-headers"]
    foreign = await http.request(method, path, json=body, headers={"origin": "https://a.example"})
    assert foreign.status_code == response.status_code
    assert "access-control-allow-origin" not in foreign.headers


async def test_a_preflight_is_answered(http: httpx.AsyncClient) -> None:
    headers = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-stainless-lang",
    }
    response = await http.options(COMPLETIONS, headers=headers)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == PAGE
    assert "x-stainless-lang" in response.headers["access-control-allow-headers"]
    assert len(response.headers.get_list(ID)) == 1


# another origin; a method that no route has; an application without the option
@pytest.mark.parametrize(
    ("path", "origin", "method", "status", "code"),
    [
        (COMPLETIONS, "https://a.example", "POST", 400, "preflight_refused"),
        (COMPLETIONS, PAGE, "PATCH", 400, "preflight_refused"),
        (f"{ODD}{COMPLETIONS}", PAGE, "POST", 401, "invalid_api_key"),
    ],
)
async def test_a_preflight_is_refused_in_the_shape_of_an_error(
    path: str, origin: str, method: str, status: int, code: str, http: httpx.AsyncClient
) -> None:
    headers = {"origin": origin, "access-control-request-method": method}
    response = await http.options(path, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.headers["content-type"] == "application/json"
    assert len(response.headers.get_list(ID)) == 1


def test_answers_before_an_engine_is_ready_say_so(deployed: Deployed) -> None:
    # Serve's own 404 until it knows the route; no 503 where the engine was there before the ingress
    assert deployed.health_before.keys() <= {404, 503}
    for status, answer in deployed.health_before.items():
        assert len(answer.headers.get_list(ID)) == 1
        if status == 503:
            assert answer.json()["error"]["code"] == "starting"
            assert answer.headers["retry-after"] == "1"
