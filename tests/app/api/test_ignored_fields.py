"""What has no effect is named in a header of the answer: on all routes, at every depth."""

from typing import Any

import pytest

from app.http.schemas import BODIES
from app.protocol.api_settings import EmbeddingSettings
from app.protocol.chat.messages import CACHE_MARK
from tests.app.api.chat.replies import EOS, saying, tokenizer
from tests.app.api.direct import encoded, send
from tests.app.api.server import make_app
from tests.fakes.scripted_engine import FakeEngineClient, Script

CHAT = {"messages": [{"role": "user", "content": "x"}]}
_PART = {"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}
MARKED = {"messages": [{"role": "user", "content": [_PART]}]}
LEAST: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"input": "x"},
    "/v1/messages": {**CHAT, "max_tokens": 16},
    "/v1/messages/count_tokens": CHAT,
    "/v1/embeddings": {"input": "x"},
    "/v1/score": {"text_1": "x", "text_2": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5]},
    "/v1/prefixes": {"name": "p", "prompt": "x"},
}
# texts that are not "u"
VALUES: dict[str, Any] = {
    "cache_control": {"type": "ephemeral"}, "documents": [], "metadata": {}, "mm_payload": "none",
    "return_mm_kwargs": True, "return_token_offsets": True, "spaces_between_special_tokens": False,
    "store": False, "stream_options": {}, "verbosity": "low",
}  # fmt: skip


async def _ignored(path: str, fields: dict[str, Any], unknown: str = "reject") -> list[str]:
    embedding = EmbeddingSettings(size=1, is_own=path == "/v1/score")
    is_pooled = "text_1" in LEAST[path] or path == "/v1/embeddings"
    engine = FakeEngineClient([Script(vector=[1.0])]) if is_pooled else saying("x")
    app = make_app(
        engine,
        tokenizer=tokenizer(),
        eos_token_ids=(EOS,),
        embedding=embedding,
        unknown_parameters=unknown,
    )
    answer = await send(app, path, encoded(LEAST[path] | fields))
    assert answer.status == 200, answer.body
    listed = answer.headers.get("x-ignored-parameters", "")
    return sorted(listed.split(", ")) if listed else []


@pytest.mark.parametrize("path", BODIES)
async def test_each_field_without_effect_is_named(path: str) -> None:
    ignored = BODIES[path].ignored
    assert await _ignored(path, {name: VALUES.get(name, "u") for name in ignored}) == sorted(
        ignored
    )
    assert await _ignored(path, dict.fromkeys(ignored)) == []


@pytest.mark.parametrize("path", BODIES)
async def test_so_is_each_that_there_is_not_where_it_is_not_refused(path: str) -> None:
    assert await _ignored(path, {"novel": 1, "model": "tiny"}, "ignore") == ["novel"]


@pytest.mark.parametrize(
    ("path", "fields", "names"),
    [
        ("/v1/completions", {"stream": True, "stream_options": {"include_obfuscation": False}},
         ["stream_options.include_obfuscation"]),
        ("/tokenize", {**MARKED, "prompt": None}, [CACHE_MARK]),
        ("/v1/prefixes", {**MARKED, "prompt": None}, [CACHE_MARK]),
        ("/v1/messages", {"system": [{"type": "text", "text": "x", "cache_control": {}}]},
         ["cache_control"]),
        ("/v1/messages/count_tokens",
         {"tools": [{"name": "f", "input_schema": {}, "cache_control": {}}]},
         ["tools.cache_control"]),
    ],
)  # fmt: skip
async def test_so_is_what_lies_deeper(path: str, fields: dict[str, Any], names: list[str]) -> None:
    assert await _ignored(path, fields) == names
