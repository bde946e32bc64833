"""What an answer repeats of a chat, and in how many chunks it comes."""

from typing import Any

import pytest

from tests.app.api.answers import events
from tests.app.api.chat.replies import ask, prompt_of, saying
from tests.app.api.direct import encoded, send
from tests.app.api.server import CHAT, COMPLETIONS, encode, make_app
from tests.fakes.scripted_engine import FakeEngineClient, Script

USER = {"role": "user", "content": "Hi"}
BEGUN = {"role": "assistant", "content": "The quick"}
CONTINUED = {"messages": [USER, BEGUN], "continue_final_message": True}


def content_of(answer: Any, stream: bool, index: int = 0) -> str:
    if not stream:
        return str(answer["choices"][index]["message"]["content"])
    choices = [choice for _, event in answer[:-1] for choice in event["choices"]]
    own = [choice["delta"] for choice in choices if choice["index"] == index]
    return "".join(delta.get("content", "") for delta in own)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({**CONTINUED, "echo": True}, "The quick brown fox"),
        ({**CONTINUED, "echo": False}, " brown fox"),
        ({**CONTINUED, "echo": True, "n": 2}, "The quick brown fox"),
        ({"messages": [USER], "echo": True}, " brown fox"),
    ],
    ids=str,
)
async def test_an_echo_begins_with_the_model_s_own_last_message(
    fields: dict[str, Any], expected: str, stream: bool
) -> None:
    answer = await ask(saying(" brown fox"), CHAT, {**fields, "temperature": 1, "stream": stream})
    for index in range(fields.get("n", 1)):
        assert content_of(answer, stream, index) == expected


@pytest.mark.parametrize("stream", [False, True])
async def test_the_text_that_the_model_sees_is_shown(stream: bool) -> None:
    engine = saying("x")
    answer = await ask(
        engine, CHAT, {"messages": [USER], "return_prompt_text": True, "stream": stream}
    )
    shown = [event for _, event in answer[:-1] if "prompt_text" in event] if stream else [answer]
    assert [event["prompt_text"] for event in shown] == [prompt_of(engine)]
    assert "Hi<|im_end|>" in prompt_of(engine)


async def test_a_text_that_is_too_long_to_be_shown_is_refused() -> None:
    app = make_app(saying("x"), max_answer_items=10)
    body = {"messages": [USER], "return_prompt_text": True}
    answer = await send(app, CHAT, encoded(body))
    assert answer.json()["error"]["param"] == "return_prompt_text"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(("interval", "num_chunks"), [(1, 8), (3, 4), (100, 2)])
async def test_chunks_have_as_many_tokens_as_asked_for(
    path: str, interval: int, num_chunks: int
) -> None:
    tokens = encode("The quick brown fox jumps over the lazy dog")[:8]
    assert len(tokens) == 8
    app = make_app(FakeEngineClient([Script(tokens)]))
    prompt = {"prompt": "x"} if path == COMPLETIONS else {"messages": [USER]}
    body = {**prompt, "stream": True, "stream_interval": interval, "return_token_ids": True}
    found = events((await send(app, path, encoded(body))).body.decode())
    sizes = [len(event["choices"][0].get("token_ids", ())) for event in found]
    assert [size for size in sizes if size] == {1: [1] * 8, 3: [1, 3, 3, 1], 100: [1, 7]}[interval]
    assert sum(sizes) == 8
    assert len([size for size in sizes if size]) == num_chunks


@pytest.mark.parametrize("stream", [False, True])
async def test_a_choice_that_says_the_same_again_ends_and_is_aborted(stream: bool) -> None:
    engine = FakeEngineClient([Script([5, 6, 7, 6, 7, 6, 7, 8, 9])])
    limit = {"max_pattern_size": 3, "min_pattern_size": 2, "min_count": 3}
    body = {"prompt": "x", "repetition_detection": limit, "return_token_ids": True}
    answer = await send(make_app(engine), COMPLETIONS, encoded({**body, "stream": stream}))
    if stream:
        choices = [event["choices"][0] for event in events(answer.body.decode())]
    else:
        choices = answer.json()["choices"]
    assert choices[-1]["finish_reason"] == "repetition"
    assert [id for choice in choices for id in choice.get("token_ids", ())] == [5, 6, 7, 6, 7, 6, 7]
    assert engine.aborted == [0]
