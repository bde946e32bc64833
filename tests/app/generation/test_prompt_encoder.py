"""Which tokens of a text may reach the engine."""

import pytest

from tests.app.api.answers import BODIES
from tests.app.api.server import CHAT, COMPLETIONS, completion_body, in_process
from tests.app.api.server import make_app as build
from tests.fakes.scripted_engine import FakeEngineClient, Script


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_tokens_that_only_the_tokenizer_knows_do_not_reach_the_engine(path: str) -> None:
    """Some published tokenizers have more tokens than the embedding has rows."""
    client = FakeEngineClient([Script([5])])
    async with in_process(build(client)) as http:
        await http.post(path, json=BODIES[path]())
    [[*ids]] = client.prompts
    last = ids.index(max(ids))
    async with in_process(build(client, vocab_size=ids[last])) as http:
        response = await http.post(path, json=BODIES[path]())
    assert response.status_code == 400
    name = "prompt" if path == COMPLETIONS else "messages"
    assert response.json()["error"]["param"] == f"{name}[{last}]"
    assert len(client.prompts) == 1


async def test_bad_words_that_the_model_cannot_say_are_left_out() -> None:
    client = FakeEngineClient([Script([5])])
    body = completion_body(prompt=[5, 6], bad_words=["<|im_end|>", "a"])
    async with in_process(build(client)) as http:
        await http.post(COMPLETIONS, json=body)
    most = max(max(word) for word in client.samplings[0].bad_words)
    async with in_process(build(client, vocab_size=most)) as http:
        await http.post(COMPLETIONS, json=body)
    known = tuple(word for word in client.samplings[0].bad_words if max(word) < most)
    assert known
    assert client.samplings[1].bad_words == known
