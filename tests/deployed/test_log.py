"""What the deployed server logs: nothing that clients wrote, and no traceback."""

import httpx
import pytest

from tests.app.api.server import CHAT, COMPLETIONS
from tests.deployed.asking import KINDS, ask
from tests.deployed.serve_run import KEY, SECRET, Deployed, bad_lines

pytestmark = pytest.mark.ray


async def test_requests_leave_nothing_of_theirs_in_the_log(
    http: httpx.AsyncClient, odd: httpx.AsyncClient, deployed: Deployed
) -> None:
    message = {"role": "user", "content": SECRET}
    for client in (http, odd):
        await ask(client, CHAT, *({"messages": [message], "max_tokens": 2, **k} for k in KINDS))
        await ask(
            client,
            COMPLETIONS,
            {"prompt": SECRET, "max_tokens": -1},
            {"prompt": SECRET * 500, "max_tokens": 4},
            {"prompt": [SECRET]},
            {SECRET: SECRET},
            {"prompt": "x", "allowed_token_ids": [2], "min_tokens": 1},
        )
        await client.post(COMPLETIONS, content=f'{{"prompt": "{SECRET}'.encode())
        await client.get(f"/{SECRET}", params={"key": SECRET})
        await client.get("/v1/models", headers={"authorization": f"Bearer {SECRET}"})
        await client.get("/v1/models", headers={"x-request-id": f"<{SECRET}>"})
    lines = deployed.log_lines()
    # both applications log where this looks
    assert len([line for line in lines if "model_ends" in line]) == 2
    assert bad_lines(lines) == []


def test_keys_are_in_no_log(deployed: Deployed) -> None:
    output = (deployed.folder / "log").read_text()
    assert KEY not in output
    assert not [line for line in deployed.log_lines() if KEY in line]


def test_no_file_has_kept_what_clients_wrote(deployed: Deployed) -> None:
    """What the test above has sent, and its key: in no log, trace or file of Ray's."""
    given = {deployed.folder / "keys"}
    files = [path for path in deployed.folder.rglob("*") if path.is_file() and path not in given]
    assert len(files) > 10
    for path in files:
        content = path.read_bytes()
        assert SECRET.encode() not in content, path
        assert KEY.encode() not in content, path
