"""What of a chat's prompt is marked to stay cached."""

from typing import Any

from app.generation.request.heads import heads_of
from app.protocol.chat_request import ChatRequest
from app.text.tokenizer import Tokenizer
from engine.types import IntColumn
from tests.app.generation.prepared import encoder as make_encoder
from tests.app.text.tokenizers import CHATML, byte_level_backend

MARK = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def _part(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


async def _heads(*contents: Any, **fields: Any) -> tuple[IntColumn, list[tuple[str, float]]]:
    encoder = make_encoder()
    messages = [{"role": "user", "content": content} for content in contents]
    request = ChatRequest.model_validate({"messages": messages, **fields})
    ids = await encoder.encode_chat(request.messages, request.template_options())
    heads = await heads_of(encoder, request, ids)
    assert all(ids[: len(head)] == head for head, _ in heads)
    return ids, [(encoder.decode(head), ttl_s) for head, ttl_s in heads]


async def test_a_head_ends_with_its_part() -> None:
    _, [(text, ttl_s)] = await _heads([_part("The quick", **MARK), _part(" brown fox")])
    assert text.endswith("The quick")
    assert ttl_s == 1800.0


async def test_each_mark_has_a_head_and_a_time() -> None:
    own = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}
    _, heads = await _heads(
        [_part("The", **MARK)], "slow", [_part("fox", **own), _part("es")],
        prompt_cache_options={"ttl": "12h"},
    )  # fmt: skip
    (first, first_s), (second, second_s) = heads
    assert (first_s, second_s) == (43200.0, 1800.0)
    assert second.startswith(first)
    assert "slow" in second
    assert second.endswith("fox")


async def test_a_mark_at_the_end_marks_all_but_the_head_of_the_answer() -> None:
    ids, [(text, _)] = await _heads([_part("The quick", **MARK)])
    assert len(text) > 0
    assert "The quick" in text
    assert len(ids)


async def test_without_a_mark_there_is_none() -> None:
    _, heads = await _heads("The quick", [_part("brown")], prompt_cache_options={})
    assert heads == []


async def test_where_the_template_refuses_to_end_nothing_is_marked() -> None:
    picky = "{% if messages|length == 1 %}{{ raise_exception('go on') }}{% endif %}" + CHATML
    encoder = make_encoder(Tokenizer(byte_level_backend(), {}, picky))
    said = [{"role": "user", "content": [_part("a", **MARK)]}, {"role": "user", "content": "b"}]
    request = ChatRequest.model_validate({"messages": said})
    ids = await encoder.encode_chat(request.messages, request.template_options())
    assert [len(head) for head, _ in await heads_of(encoder, request, ids)] == [0]
