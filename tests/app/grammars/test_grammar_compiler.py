"""Hostile and unsupported grammars are refused in bounded time, by a process that may die."""

import asyncio
import gc
import json
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from app.grammars.grammar_compiler import GrammarCompiler
from app.grammars.grammar_spec import GrammarSpec, Kind
from app.limits import MAX_GRAMMAR_LEN
from engine.errors import InvalidRequest, Overloaded
from tests.app.text.tokenizers import chatml_tokenizer

_CHAIN = {f"a{i}": {"properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(700)}
_WIDE = [{"properties": {f"k{i}_{j}": {"type": "string"} for j in range(20)}} for i in range(140)]
_RULES = "\n".join(f"r{i}: r{i + 1}" for i in range(3000))
BOMBS: list[tuple[Kind, Any, str]] = [
    ("regex", "(" * 30_000 + ")" * 30_000, "nested"),
    ("regex", "x{1000000}", "repetitions"),
    ("regex", "a(b(x{100}){100}){100}", "repetitions"),
    ("regex", "x" * (MAX_GRAMMAR_LEN + 1), "at most 65536 characters"),
    ("regex", "(a*)" * 16_000, ""),
    ("regex", "(?=a)b", "look-ahead"),
    ("regex", "[", "unclosed"),
    ("grammar", f'start: r0\n{_RULES}\nr3000: "z"', "too much time or memory"),
    ("grammar", "start: " + "(" * 9000 + '"a"' + ")" * 9000, "nested"),
    ("grammar", "start: %%%", "error"),
    ("json", {"enum": [f"v{i}" for i in range(50_000)]}, "at most 65536 characters"),
    ("json", {"pattern": "^((a{99}){99}){99}$", "type": "string"}, "repetitions"),
    ("json", {"$defs": _CHAIN | {"a700": {}}, "$ref": "#/$defs/a0"}, "too much time or memory"),
    ("json", {"anyOf": _WIDE}, ""),
    ("json", {"type": "array", "uniqueItems": True}, "uniqueItems"),
    ("json", {"not": {"type": "string"}}, "not"),
    ("json", {"if": {"type": "string"}, "then": {"minLength": 3}}, "if"),
    ("json", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ("json", {"type": "string", "format": "foo"}, "foo"),
    ("json", {"$ref": "https://example.com/schema.json"}, "not present"),
    ("json", {"$ref": "#"}, ""),
    ("json", {"type": "integer", "minimum": 3, "maximum": 1}, "Unsatisfiable"),
    ("json", {"type": "array", "contains": {}, "x-guidance": {"lenient": True}}, "contains"),
    ("json", "[", "not valid JSON"),
    ("json", "[]", "object"),
]


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(chatml_tokenizer().to_json, [2])
    yield compiler
    compiler.close()


def _spec(kind: Kind, content: Any, **options: Any) -> GrammarSpec:
    text = content if isinstance(content, str) else json.dumps(content)
    return GrammarSpec(kind=kind, content=text, field="guided", **options)


@pytest.mark.parametrize(("kind", "content", "reason"), BOMBS)
async def test_what_cannot_be_used_is_refused_by_name(
    compiler: GrammarCompiler, kind: Kind, content: Any, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"^guided: .*{reason}") as refusal:
        # far below the limit of the test, and the process is killed before
        await asyncio.wait_for(compiler.compile(_spec(kind, content)), 30)
    assert refusal.value.param == "guided"
    assert len(str(refusal.value)) < 400
    # the next one finds the process alive, or another one
    assert await compiler.compile(_spec("regex", "a|b"))


async def test_grammars_are_remembered_and_refusals_too(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, unsound = _spec("regex", "[a-d]+"), _spec("regex", "[")
    grammar = await compiler.compile(sound)
    with pytest.raises(InvalidRequest):
        await compiler.compile(unsound)
    monkeypatch.setattr(compiler, "_check", None)
    assert await compiler.compile(sound) == grammar
    with pytest.raises(InvalidRequest):
        await compiler.compile(unsound)


async def test_many_at_once_have_their_own_answers(compiler: GrammarCompiler) -> None:
    texts = [f"a{index}" for index in range(40)]
    found = await asyncio.gather(*(compiler.compile(_spec("regex", text)) for text in texts))
    assert all(text in grammar for text, grammar in zip(texts, found, strict=True))


async def test_no_more_wait_than_can_be_answered(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()

    def check(spec: GrammarSpec) -> dict[str, str]:
        free.wait()
        return {"grammar": spec.content}

    monkeypatch.setattr(compiler, "_check", check)
    asked = [asyncio.ensure_future(compiler.compile(_spec("regex", f"w{i}"))) for i in range(70)]
    done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    refusals = [task.exception() for task in done]
    free.set()
    assert len(await asyncio.gather(*waiting)) == 64
    assert [type(refusal) for refusal in refusals] == [Overloaded] * 6


async def test_a_tokenizer_that_cannot_be_used_is_said_to_be() -> None:
    compiler = GrammarCompiler(lambda: '{"model": 1}', [2])
    with pytest.raises(InvalidRequest, match="this model's tokenizer"):
        await compiler.compile(_spec("regex", "a"))
    compiler.close()


async def test_a_model_without_an_end_has_no_grammars() -> None:
    compiler = GrammarCompiler(chatml_tokenizer().to_json, [])
    with pytest.raises(InvalidRequest, match="no token that ends"):
        await compiler.compile(_spec("regex", "a"))
    compiler.close()


async def test_its_process_ends_with_it() -> None:
    compiler = GrammarCompiler(chatml_tokenizer().to_json, [2])
    await compiler.compile(_spec("regex", "a"))
    checker = compiler._checker
    assert checker is not None
    process = checker._process
    assert process.poll() is None
    gone = weakref.ref(compiler)
    del compiler, checker
    gc.collect()
    assert gone() is None
    # another thread may be about to end it
    assert process.wait(30) is not None


async def test_a_process_that_dies_is_replaced(compiler: GrammarCompiler) -> None:
    await compiler.compile(_spec("regex", "first"))
    assert compiler._checker is not None
    compiler._checker._process.kill()
    with pytest.raises(InvalidRequest, match="too much"):
        await compiler.compile(_spec("regex", "second"))
    assert await compiler.compile(_spec("regex", "third"))
