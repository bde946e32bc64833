"""Headers where HAProxy takes the place of Serve's own proxy, as in production."""

from collections.abc import Iterator

import httpx
import pytest

from app.command.environment import PROXIES
from app.command.haproxy import own_haproxy
from load_tests.free_port import free_port
from tests.app.api.server import COMPLETIONS
from tests.app.http.flow.heads import LARGE, TOO_LARGE, answer_to, code_of, status_of
from tests.deployed.bad_requests.test_headers import ID
from tests.deployed.bad_requests.test_limits import check_loopback, port_of
from tests.deployed.serve_run import Deployed, serve_run

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def behind_haproxy() -> Iterator[Deployed]:
    first = free_port()
    variables = {
        **PROXIES["haproxy"],
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(first + 50),
    }
    with (
        own_haproxy(variables) as environment,
        serve_run(environment, has_dashboard=True) as running,
    ):
        yield running


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"max_tokens": -1}], ids=str)
@pytest.mark.parametrize("given", [None, "fit-1", "<script>", "x" * 5000], ids=str)
def test_an_answer_has_one_request_id(
    given: str | None, fields: dict[str, object], behind_haproxy: Deployed
) -> None:
    body = {"prompt": "x", "max_tokens": 2, **fields}
    headers = {} if given is None else {ID: given}
    url = behind_haproxy.url + COMPLETIONS
    response = httpx.post(url, json=body, headers=headers, trust_env=False, timeout=60)
    [shown] = response.headers.get_list(ID)
    assert shown == given if given == "fit-1" else len(shown) == 24


def test_headers_meant_for_serve_have_no_effect(behind_haproxy: Deployed) -> None:
    url, body = behind_haproxy.url + COMPLETIONS, {"prompt": "x", "max_tokens": 8}
    headers = {"x-request-timeout-seconds": "0.0001", "x-session-id": "a"}
    response = httpx.post(url, json=body, headers=headers, trust_env=False, timeout=60)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("name", TOO_LARGE)
async def test_a_head_that_is_too_large_is_refused(name: str, behind_haproxy: Deployed) -> None:
    raw, status, code = TOO_LARGE[name]
    answer = await answer_to(port_of(behind_haproxy), raw)
    assert (status_of(answer), code_of(answer)) == (status, code)


@pytest.mark.parametrize("name", LARGE)
async def test_a_large_head_reaches_the_application(name: str, behind_haproxy: Deployed) -> None:
    answer = await answer_to(port_of(behind_haproxy), LARGE[name])
    assert code_of(answer) in ("missing_required_parameter", "unknown_url")


@pytest.mark.parametrize("method", ["HEAD", "GET", "DELETE"])
def test_other_methods_have_an_answer_in_the_api_s_shape(
    method: str, behind_haproxy: Deployed
) -> None:
    answer = httpx.request(method, behind_haproxy.url + COMPLETIONS, trust_env=False)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert method == "HEAD" or answer.json()["error"]["code"] == "method_not_allowed"


def test_every_port_is_on_loopback(behind_haproxy: Deployed) -> None:
    check_loopback(behind_haproxy)
