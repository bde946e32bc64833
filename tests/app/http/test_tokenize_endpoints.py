import threading
from typing import Any

import pytest

from app.text.tokenizer import Tokenizer
from tests.app.api.server import MAX_MODEL_LEN, MODEL, encode, in_process, make_app
from tests.fakes.scripted_engine import FakeEngineClient

MESSAGES = [{"role": "user", "content": "The quick"}]


async def post(path: str, body: dict[str, Any], **settings: Any) -> Any:
    async with in_process(make_app(FakeEngineClient([]), **settings)) as http:
        return await http.post(path, json=body)


async def test_a_text_and_its_tokens_are_the_same() -> None:
    text = "The quick 東京 <|im_end|>"
    answer = (await post("/tokenize", {"prompt": text, "return_token_strs": True})).json()
    assert answer["tokens"] == encode(text)
    assert (answer["count"], answer["max_model_len"]) == (len(encode(text)), MAX_MODEL_LEN)
    assert answer["token_strs"][0] == "The"
    assert (await post("/detokenize", {"tokens": encode(text)})).json() == {"prompt": text}


async def test_a_conversation_is_counted_as_it_is_sent() -> None:
    answer = (await post("/tokenize", {"model": MODEL, "messages": MESSAGES})).json()
    expected = encode("<|im_start|>user\nThe quick<|im_end|>\n<|im_start|>assistant\n")
    assert answer["tokens"] == expected
    assert answer["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, 400, "prompt"),
        ("/tokenize", {"prompt": 7}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "chat_template": "y"}, 400, "chat_template"),
        ("/tokenize", {"prompt": "a" * 1_000_000}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "model": "other"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [3, -1]}, 400, "tokens[1]"),
        ("/detokenize", {"tokens": [10**30]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens[0]"),
    ],
)
async def test_bad_fields_are_named(
    path: str, body: dict[str, Any], status: int, param: str
) -> None:
    response = await post(path, body)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param


async def test_no_tokens_are_no_text() -> None:
    assert (await post("/detokenize", {"tokens": []})).json() == {"prompt": ""}
    assert (await post("/tokenize", {"prompt": ""})).json()["tokens"] == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"prompt": "abcdefgh"}, "prompt"),
        ("/tokenize", {"prompt": "abcd", "return_token_strs": True}, "prompt"),
        ("/tokenize", {"messages": MESSAGES}, "messages"),
        ("/detokenize", {"tokens": [5] * 8}, "tokens"),
    ],
)
async def test_more_ids_than_an_answer_may_list_are_refused(
    path: str, body: dict[str, Any], param: str
) -> None:
    response = await post(path, body, max_answer_items=7)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert "more than 7" in response.json()["error"]["message"]


async def test_as_many_ids_as_an_answer_may_list_are_decoded_off_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = set[threading.Thread]()
    decode = Tokenizer.decode

    def noted(self: Tokenizer, ids: list[int]) -> str:
        threads.add(threading.current_thread())
        return decode(self, ids)

    monkeypatch.setattr(Tokenizer, "decode", noted)
    many = encode("a") * 5000
    assert (await post("/detokenize", {"tokens": many})).json() == {"prompt": "a" * 5000}
    assert threading.current_thread() not in threads
