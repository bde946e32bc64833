"""What the deployed server refuses before an application looks at it, and where it listens."""

import ipaddress
from itertools import product
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from load_tests.bench.startup.process_tree import role_of
from load_tests.faults.victims import command_line
from tests.app.api.server import COMPLETIONS
from tests.app.http.flow.heads import (
    ENDLESS,
    LARGE,
    TOO_LARGE,
    answer_to,
    code_of,
    send_endless,
    status_of,
)
from tests.deployed.serve_run import KEY, ODD, SECRET, Deployed

pytestmark = pytest.mark.ray


def port_of(deployed: Deployed) -> int:
    return urlsplit(deployed.url).port or 0


@pytest.mark.parametrize("name", TOO_LARGE)
async def test_a_head_that_is_too_large_is_refused(name: str, deployed: Deployed) -> None:
    raw, status, code = TOO_LARGE[name]
    answer = await answer_to(port_of(deployed), raw)
    assert (status_of(answer), code_of(answer)) == (status, code)


@pytest.mark.parametrize("name", LARGE)
async def test_a_large_head_reaches_the_application(name: str, deployed: Deployed) -> None:
    answer = await answer_to(port_of(deployed), LARGE[name])
    assert code_of(answer) in ("missing_required_parameter", "unknown_url")


@pytest.mark.parametrize("name", ENDLESS)
async def test_what_never_ends_is_refused_early(name: str, deployed: Deployed) -> None:
    answer, sent = await send_endless(port_of(deployed), ENDLESS[name])
    assert sent < 8 << 20
    assert not answer or status_of(answer) in (414, 431)


@pytest.mark.parametrize("method", ["HEAD", "GET", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_other_methods_have_an_answer_in_the_api_s_shape(
    method: str, http: httpx.AsyncClient
) -> None:
    answer = await http.request(method, COMPLETIONS)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert method == "HEAD" or answer.json()["error"]["code"] == "method_not_allowed"


async def test_no_answer_repeats_what_clients_wrote(
    http: httpx.AsyncClient, odd: httpx.AsyncClient
) -> None:
    header = {"authorization": f"Bearer {SECRET}", "x-request-id": f"<{SECRET}>"}
    for client in (http, odd):
        answers = [
            await client.post(COMPLETIONS, json={"prompt": SECRET, "max_tokens": -1}),
            await client.post(COMPLETIONS, json={"prompt": [SECRET, 7]}),
            await client.post(COMPLETIONS, content=f'{{"prompt": "{SECRET}'.encode()),
            await client.get(f"/{SECRET}", params={"key": SECRET}),
            await client.get("/v1/models", headers=header),
            await client.get("/metrics"),
        ]
        # no model has answered, which may well say the word again
        assert all(answer.is_error for answer in answers[:4])
        for answer in answers:
            assert SECRET not in answer.text
            assert SECRET not in str(answer.headers)
            assert KEY not in answer.text


def check_loopback(deployed: Deployed) -> None:
    """Check that no process of a server listens anywhere else."""
    pids = {process.pid for process in deployed.running.processes()}
    listening = [
        connection.laddr
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.pid in pids
    ]
    assert port_of(deployed) in {port for _, port in listening}
    hosts = {ipaddress.ip_address(host.removeprefix("::ffff:")) for host, _ in listening}
    assert all(host.is_loopback for host in hosts), listening


def test_every_port_is_on_loopback(deployed: Deployed) -> None:
    check_loopback(deployed)


def test_ray_s_dashboard_is_not_started(deployed: Deployed) -> None:
    roles = {role_of(command_line(process)) for process in deployed.running.processes()}
    assert "raylet" in roles
    # what serves its routes; Ray's own process of that name counts users, and listens nowhere
    assert "dashboard module" not in roles


def test_the_key_of_the_other_application_opens_nothing_without_it(deployed: Deployed) -> None:
    paths = (
        f"{ODD}/v1/models",
        f"/{ODD}/v1/models",
        f"{ODD}//v1/models",
        f"{ODD}/v1%2fmodels",
    )
    with httpx.Client(trust_env=False, verify=False) as client:
        for path, host in product(paths, ("x", "x/health?a=", "")):
            answer = client.get(deployed.url + path, headers={"host": host})
            assert answer.status_code in (400, 401, 404), path
