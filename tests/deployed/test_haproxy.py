"""Headers where HAProxy takes the place of Serve's own proxy, as in production."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.app.api.server import COMPLETIONS
from tests.deployed.serve_run import Deployed, serve_run
from tests.deployed.test_headers import ID
from tests.load_tests.free_port import free_port

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def _environment(folder: Path) -> dict[str, str]:
    """Switch HAProxy on, with files and ports of its own: it would take the whole machine's."""
    first = free_port()
    ports = {"METRICS_PORT": free_port(), "STATS_PORT": free_port()}
    files = {
        "CONFIG_FILE_LOC": "haproxy.cfg",
        "SOCKET_PATH": "admin.sock",
        "SERVER_STATE_BASE": "",
        "SERVER_STATE_FILE": "state",
        "METRICS_SOCKET_PATH": "metrics.sock",
    }
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port()),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(free_port()),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0.1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(first + 50),
        **{f"RAY_SERVE_HAPROXY_{name}": str(port) for name, port in ports.items()},
        **{f"RAY_SERVE_HAPROXY_{name}": str(folder / file) for name, file in files.items()},
    }


@pytest.fixture(scope="module")
def behind_haproxy() -> Iterator[Deployed]:
    with (
        tempfile.TemporaryDirectory(prefix="haproxy_") as folder,
        serve_run(_environment(Path(folder))) as running,
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
