import hashlib

import pytest

from app.generation.tenancy import session_key, tenant_salt
from tests.app.api.answers import BODIES
from tests.app.api.server import CHAT, COMPLETIONS, in_process, make_app
from tests.fakes.scripted_engine import FakeEngineClient, Script

KEYS = ["one", "two"]
DIGESTS = tuple(hashlib.sha256(key.encode()).digest() for key in KEYS)


def test_a_salt_is_one_key_s_and_one_name_s() -> None:
    callers = [b"", *DIGESTS]
    names = [None, "X", "Y", DIGESTS[0].hex(), "\0"]
    salts = {tenant_salt(caller, name) for caller in callers for name in names}
    assert len(salts) == len(callers) * len(names)


def test_no_name_makes_one_caller_s_salt_another_s() -> None:
    """Fields are framed, so that their borders cannot be moved."""
    assert tenant_salt(b"ab", "c") != tenant_salt(b"a", "bc")
    assert tenant_salt(b"abc", None) != tenant_salt(b"ab", "c")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_the_engine_gets_the_tenant(path: str) -> None:
    client = FakeEngineClient([Script([5, 2])])
    async with in_process(make_app(client, api_key_sha256=DIGESTS)) as http:
        for key in KEYS:
            for fields in ({}, {"cache_salt": "X"}):
                headers = {"authorization": f"Bearer {key}"}
                response = await http.post(path, json=BODIES[path](**fields), headers=headers)
                assert response.status_code == 200
    assert client.salts == [tenant_salt(digest, name) for digest in DIGESTS for name in (None, "X")]


async def test_without_keys_all_callers_share() -> None:
    client = FakeEngineClient([Script([5, 2])])
    async with in_process(make_app(client)) as http:
        for headers in ({}, {"authorization": "Bearer one"}):
            await http.post(CHAT, json=BODIES[CHAT](), headers=headers)
    assert client.salts == [tenant_salt(b"", None)] * 2


def test_a_session_is_one_tenant_s() -> None:
    assert session_key(b"salt", None) == b""
    keys = {session_key(salt, name) for salt in (b"one", b"two") for name in ("A", "B")}
    assert len(keys) == 4


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_the_engine_gets_the_session_of_the_body_or_of_the_header(path: str) -> None:
    client = FakeEngineClient([Script([5, 2])])
    sent: list[tuple[dict[str, str], dict[str, str], str | None]] = [
        ({}, {}, None),
        ({"session_id": "A b"}, {}, "A b"),
        ({}, {"x-session-id": "C"}, "C"),
        ({"session_id": "A"}, {"x-session-id": "C"}, "A"),
        # no harmless text: served as if there were none
        ({}, {"x-session-id": "x" * 129}, None),
        ({}, {"x-session-id": "a b"}, None),
    ]
    async with in_process(make_app(client)) as http:
        for fields, headers, _ in sent:
            response = await http.post(path, json=BODIES[path](**fields), headers=headers)
            assert response.status_code == 200
        too_long = await http.post(path, json=BODIES[path](session_id="x" * 129))
    assert too_long.status_code == 400
    salt = tenant_salt(b"", None)
    assert client.sessions == [session_key(salt, name) for _, _, name in sent]
