"""Each row of the tables, plain and streamed: what it takes, what it refuses, what null means."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from starlette.applications import Starlette

from app.generation.tenancy import tenant_salt
from app.http.schemas import BODIES
from engine.runtime.messages import PrefixInfo, tokens_digest
from engine.types import FinishReason, SamplingParams, int32
from tests.app.api.chat.replies import EOS, tokenizer
from tests.app.api.direct import Answer, encoded, send
from tests.app.api.fields import chat_rows, completion_rows, text_rows, translated_rows
from tests.app.api.fields.rows import INVALID, MALFORMED, MISSING, NO_JSON, Row
from tests.app.api.fields.specified import SPECIFIED
from tests.app.api.server import CHAT, COMPLETIONS, make_app
from tests.app.fuzz.run import faults_of
from tests.fakes.scripted_engine import FakeEngineClient, Hypothesis, Script

ROWS: Mapping[str, list[Row]] = {
    COMPLETIONS: completion_rows.COMPLETION,
    CHAT: chat_rows.CHAT_ROWS,
    "/v1/responses": translated_rows.RESPONSES,
    "/v1/messages": translated_rows.ANTHROPIC,
    "/v1/messages/count_tokens": translated_rows.COUNT,
    "/tokenize": text_rows.TOKENIZE,
    "/detokenize": text_rows.DETOKENIZE,
    "/v1/prefixes": text_rows.PREFIX,
}
# what each route needs at least; the seed makes equal requests equal
LEAST: Mapping[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "The quick", "seed": 1},
    CHAT: {"messages": [chat_rows.USER], "seed": 1},
    "/v1/responses": {"input": "The quick", "seed": 1},
    "/v1/messages": {"messages": [chat_rows.USER], "max_tokens": 16},
    "/v1/messages/count_tokens": {"messages": [chat_rows.USER]},
    "/tokenize": {"prompt": "The quick"},
    "/detokenize": {"tokens": [5]},
    "/v1/prefixes": {"name": "p", "prompt": "The quick"},
}
CASES = [(path, row) for path, rows in ROWS.items() for row in rows]
_HOLE = "a hole for what is no JSON"


@dataclass(frozen=True, slots=True)
class _Tried:
    answer: Answer
    samplings: list[SamplingParams]

    @property
    def verdict(self) -> tuple[int, str | None, str | None]:
        """Status, code and param."""
        if self.answer.status == 200:
            return 200, None, None
        error = self.answer.json()["error"]
        return self.answer.status, error["code"], error["param"]


@cache
def _server() -> tuple[FakeEngineClient, Starlette]:
    found = [Hypothesis([5], [-0.5], FinishReason.LENGTH), Hypothesis([6], [-0.7])]
    engine = FakeEngineClient([Script([5, EOS], hypotheses=found)])
    # every prompt begins with it
    empty = PrefixInfo(
        name="empty", num_tokens=0, num_blocks=0, digest=tokens_digest(int32()), is_warm=True,
        ttl_s=None,
    )  # fmt: skip
    engine.prefixes_of[tenant_salt(b"", None)] = {empty.name: empty}
    return engine, make_app(engine, tokenizer=tokenizer(), eos_token_ids=(EOS,))


async def _try(path: str, body: Mapping[str, Any], hole: bytes | None = None) -> _Tried:
    engine, app = _server()
    engine.prompts.clear()
    engine.samplings.clear()
    content = encoded(body)
    if hole is not None:
        content = content.replace(json.dumps(_HOLE).encode(), hole)
    answer = await send(app, path, content)
    if "seed" in BODIES[path].model_fields:
        return _Tried(answer, list(engine.samplings))
    return _Tried(answer, [replace(sampling, seed=0) for sampling in engine.samplings])


def _body(path: str, row: Row, stream: bool | None) -> dict[str, Any]:
    options = {} if stream is None else {"stream": stream}
    return {**LEAST[path], **options, **row.beside}


def _modes(path: str, row: Row) -> list[bool | None]:
    if "stream" not in BODIES[path].model_fields or row.name == "stream":
        return [None]
    return [True] if row.name == "stream_options" else [False, True]


def _named(value: Any) -> str:
    return value.name if isinstance(value, Row) else str(value)


@pytest.mark.parametrize(("path", "row"), CASES, ids=_named)
async def test_good_values_are_served(path: str, row: Row) -> None:
    deviations: list[Any] = []
    for stream in _modes(path, row):
        for value in (*row.good, *row.plain_only):
            tried = await _try(path, {**_body(path, row, stream), row.name: value})
            right = _served(row, value) if value in row.good or not stream else _refused(row)
            if (found := _outcome(row, tried)) != right:
                deviations.append((stream, value, found, right, tried.answer.body[:300]))
            deviations += [(stream, value, w) for w in faults_of(path, tried.answer)]
    assert not deviations


def _served(row: Row, value: Any) -> tuple[Any, ...]:
    return (200, None, None), row.is_idle, None if row.reaches is None else value


def _refused(row: Row) -> tuple[Any, ...]:
    return (400, INVALID, row.name), False, None


def _outcome(row: Row, tried: _Tried) -> tuple[Any, ...]:
    ignored = tried.answer.headers.get("x-ignored-parameters", "").split(", ")
    reached = row.reaches and [getattr(sampling, row.reaches) for sampling in tried.samplings]
    return tried.verdict, row.name in ignored, reached[0] if reached else None


@pytest.mark.parametrize(("path", "row"), CASES, ids=_named)
async def test_bad_values_are_refused_by_name(path: str, row: Row) -> None:
    deviations: list[Any] = []
    for stream in _modes(path, row):
        for wrong in row.wrong():
            tried = await _try(path, {**_body(path, row, stream), row.name: wrong.value})
            status = 404 if wrong.code.endswith("_not_found") else 400
            right = (status, wrong.code, wrong.param or row.name + wrong.place)
            if tried.verdict != right or tried.samplings:
                shown = str(wrong.value)[:60]
                deviations.append((stream, shown, tried.verdict, right, tried.answer.body[:200]))
            deviations += [(stream, w) for w in faults_of(path, tried.answer)]
    assert not deviations


@pytest.mark.parametrize(("path", "row"), CASES, ids=_named)
async def test_null_is_as_if_left_out(path: str, row: Row) -> None:
    for stream in _modes(path, row):
        without = {k: v for k, v in _body(path, row, stream).items() if k != row.name}
        null, left_out = await _try(path, {**without, row.name: None}), await _try(path, without)
        expected = (400, MISSING, row.name) if row.is_required else (200, None, None)
        if row.is_one_of_two:
            expected = (400, INVALID, "prompt")
        assert null.verdict == left_out.verdict == expected
        if row.name != "seed":
            assert null.samplings == left_out.samplings
        ignored = "x-ignored-parameters"
        assert null.answer.headers.get(ignored) == left_out.answer.headers.get(ignored)


@pytest.mark.parametrize(("path", "row"), CASES, ids=_named)
async def test_what_is_no_json_is_refused(path: str, row: Row) -> None:
    for stream in _modes(path, row)[:1]:
        for hole in NO_JSON[row.kind]:
            tried = await _try(path, {**_body(path, row, stream), row.name: _HOLE}, hole)
            assert tried.verdict == (400, MALFORMED, None), hole


TOGETHER: list[tuple[str, dict[str, Any], str]] = [
    *((COMPLETIONS, fields, param) for fields, param in completion_rows.TOGETHER),
    *((CHAT, fields, param) for fields, param in chat_rows.TOGETHER),
]


@pytest.mark.parametrize(("path", "fields", "param"), TOGETHER, ids=str)
@pytest.mark.parametrize("stream", [False, True])
async def test_fields_that_contradict_each_other_are_named(
    path: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    tried = await _try(path, {**LEAST[path], "stream": stream, **fields})
    assert tried.verdict == (400, INVALID, param)
    assert tried.samplings == []


@pytest.mark.parametrize("path", ROWS)
def test_every_field_has_a_row(path: str) -> None:
    model = BODIES[path]
    known = {field.alias or name for name, field in model.model_fields.items()}
    rows = {row.name for row in ROWS[path] if row.good or row.is_unsupported}
    assert rows == known | set(model.unsupported)
    assert rows >= set(SPECIFIED.get(path, ()))
