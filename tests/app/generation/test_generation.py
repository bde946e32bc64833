"""The answers of all prompts of a request: their order, their best, their tokens, their end."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from app.generation.generation import Generation
from app.generation.outlet import Outlet
from app.text.choice_text import TextDelta, join
from engine.errors import EngineError, Overloaded, PromptTooLong
from tests.app.api.server import encode
from tests.app.generation.prepared import Prepared, chat, completion, encoder
from tests.fakes.scripted_engine import FakeEngineClient, Hypothesis, Script

EOS = 2


async def start(client: FakeEngineClient, request: Prepared) -> Generation:
    return await Generation.start(client, *request, encoder(), b"salt")


async def read(generation: Generation) -> list[TextDelta]:
    """Return every candidate put together, in their order."""
    parts: list[list[TextDelta]] = [[] for _ in range(generation.num_candidates)]
    async with aclosing(aiter(generation)) as source:
        async for index, part in source:
            assert isinstance(part, TextDelta)
            parts[index].append(part)
    return [join(of_candidate) for of_candidate in parts]


def letters(first: str) -> Script:
    """Draw the letter that is as many places behind the first as the seed says."""
    return Script(draw=lambda seed: [*encode(chr(ord(first) + seed)), EOS])


async def test_candidates_are_numbered_prompt_by_prompt() -> None:
    client = FakeEngineClient([letters("a"), letters("x")])
    request = await completion(prompt=["1", "2"], n=3, seed=0)
    assert [part.text for part in await read(await start(client, request))] == list("abcxyz")


async def test_equal_candidates_are_computed_once_and_given_to_all() -> None:
    client = FakeEngineClient([Script([*encode("The"), EOS]), Script([*encode("fox"), EOS])])
    request = await completion(prompt=["1", "2"], n=2, temperature=0)
    generation = await start(client, request)
    texts = [part.text for part in await read(generation)]
    assert texts == ["The", "The", "fox", "fox"]
    assert [sampling.n for sampling in client.samplings] == [1, 1]
    said = len(encode("The")) + 1
    assert generation.usage(1).completion_tokens == said
    assert generation.total_usage().completion_tokens == 2 * said + 2 * (len(encode("fox")) + 1)


def text(name: str, logprob: float, num_tokens: int = 1) -> TextDelta:
    return TextDelta(text=name, logprob=logprob, token_ids=(5,) * num_tokens)


async def best(texts: list[TextDelta], **fields: Any) -> list[str]:
    request = await completion(**fields)
    generation = await start(FakeEngineClient([Script([EOS])]), request)
    return [part.text for part in generation.best(texts)]


async def test_the_likeliest_candidates_are_kept_best_first() -> None:
    texts = [text("a", -3.0), text("b", -1.0), text("c", -2.0)]
    assert await best(texts, n=2, best_of=3) == ["b", "c"]


async def test_a_longer_candidate_is_not_worse_for_its_length() -> None:
    texts = [text("long", -3.0, num_tokens=4), text("short", -1.0, num_tokens=1)]
    assert await best(texts, n=1, best_of=2) == ["long"]


async def test_the_best_are_chosen_for_each_prompt() -> None:
    texts = [text("a", -9.0), text("b", -8.0), text("c", -1.0), text("d", -2.0)]
    assert await best(texts, prompt=["1", "2"], n=1, best_of=2) == ["b", "c"]


async def test_order_is_kept_where_all_are_returned() -> None:
    texts = [text("a", -3.0), text("b", -1.0)]
    assert await best(texts, n=2) == ["a", "b"]
    assert await best(texts, n=2, best_of=5, use_beam_search=True) == ["a", "b"]


async def test_tokens_are_counted_for_each_candidate_and_each_prompt_once() -> None:
    scripts = [
        Script(draw=lambda seed: [5] * (2 + seed), num_cached=1),
        Script(draw=lambda seed: [5] * (4 + seed), num_cached=2),
    ]
    request = await completion(prompt=[[7, 8], [7, 8, 9]], n=2, seed=0)
    generation = await start(FakeEngineClient(scripts), request)
    assert generation.total_usage().completion_tokens == 0
    await read(generation)
    counts = [generation.usage(index) for index in range(4)]
    assert [count.prompt_tokens for count in counts] == [2, 2, 3, 3]
    assert [count.completion_tokens for count in counts] == [2, 3, 4, 5]
    assert [count.cached_tokens for count in counts] == [1, 1, 2, 2]
    total = generation.total_usage()
    assert (total.prompt_tokens, total.completion_tokens, total.cached_tokens) == (5, 14, 3)


async def test_whether_there_is_anything_before_the_end() -> None:
    client = FakeEngineClient([Script([5, EOS], hypotheses=[Hypothesis([5, EOS], [-1.0, -1.0])])])
    assert not (await start(client, await chat())).is_silent
    assert (await start(client, await completion(use_beam_search=True))).is_silent
    assert (await start(client, await completion(echo=True, max_tokens=0))).is_silent


async def test_the_engine_gets_the_prompt_and_the_salt() -> None:
    client = FakeEngineClient([Script([5])])
    await start(client, await completion(prompt=[7, 8, 9]))
    assert (client.prompts, client.salts) == ([[7, 8, 9]], [b"salt"])


async def test_a_prompt_that_is_only_scored_is_sent_without_its_last_token() -> None:
    client = FakeEngineClient([Script([5])])
    request = await completion(prompt=[7, 8, 9], echo=True, logprobs=0, max_tokens=0)
    [answer] = await read(await start(client, request))
    assert client.prompts == [[7, 8]]
    assert [entry.token for entry in answer.logprobs] == [7, 8, 9]


async def test_a_refused_prompt_undoes_those_before_it() -> None:
    refusal = Overloaded("the queue is full", retry_after_s=1)
    client = FakeEngineClient([Script([5])], refusal=refusal, num_accepted=2)
    with pytest.raises(Overloaded):
        await start(client, await completion(prompt=["1", "2", "3"]))
    assert client.aborted == [0, 1]


async def test_a_prompt_that_cannot_fit_has_the_name_that_the_client_gave_it() -> None:
    for prepare, name in ((completion, "prompt"), (chat, "messages")):
        refusal = PromptTooLong("the pool holds 64 tokens", param="unknown", limit=64, got=99)
        with pytest.raises(PromptTooLong) as caught:
            await start(FakeEngineClient([], refusal=refusal), await prepare())
        assert caught.value.param == name


async def test_closing_aborts_every_prompt_that_has_not_ended() -> None:
    client = FakeEngineClient([Script([5] * 9), Script([5] * 9, pause_at=3), Script([5, EOS])])
    request = await completion(prompt=["1", "2", "3"])
    generation = await start(client, request)
    async with aclosing(aiter(generation)) as source:
        async for index, part in source:
            if index == 0 and isinstance(part, TextDelta) and part.finish_reason is not None:
                break
    await generation.close()
    assert client.aborted == [1]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_nothing_is_left_to_abort_after_the_end() -> None:
    client = FakeEngineClient([Script([5, EOS])])
    generation = await start(client, await completion(prompt=["1", "2"]))
    await read(generation)
    await generation.close()
    assert client.aborted == []


async def test_closing_completes_while_it_is_cancelled() -> None:
    client = FakeEngineClient([Script([5])], abort_gate=asyncio.Event())
    generation = await start(client, await completion(prompt=["1", "2"]))
    task = asyncio.ensure_future(generation.close())
    for _ in range(3):
        # lets it begin, and lets the cancellation arrive
        await asyncio.wait({task}, timeout=0)
        task.cancel()
    assert client.abort_gate is not None
    client.abort_gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(client.aborted) == [0, 1]


async def test_a_prompt_that_fails_ends_the_whole_and_leaves_no_task() -> None:
    scripts = [Script([5] * 9, pause_at=1), Script([5, 5], error=EngineError("x"), error_at=1)]
    client = FakeEngineClient(scripts)
    generation = await start(client, await completion(prompt=["1", "2"]))
    with pytest.raises(EngineError, match="x"):
        await read(generation)
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Taken:
    """An outlet that the test opens and closes. Implements `Outlet`."""

    def __init__(self, *, takes_text: bool = True) -> None:
        self.takes_text = takes_text
        self.is_open = True
        self.texts: list[tuple[int, str]] = []

    def may_take(self) -> bool:
        return self.is_open

    def take_text(self, index: int, text: str, num_tokens: int) -> None:
        self.texts.append((index, text))

    def take(self, index: int, delta: TextDelta) -> None:
        self.texts.append((index, delta.text))


@pytest.mark.parametrize("takes_text", [True, False])
async def test_an_outlet_takes_all_but_the_begin_and_the_end(takes_text: bool) -> None:
    words = encode("The quick brown fox")
    generation = await start(
        FakeEngineClient([Script([*words, EOS])]), await completion(max_tokens=len(words))
    )
    noted: list[tuple[int, int, str | None]] = []
    generation.note = lambda *what: noted.append(what)
    outlet: Outlet = Taken(takes_text=takes_text)
    generation.give_to(outlet)
    assert isinstance(outlet, Taken)
    parts: list[str] = []
    async with aclosing(aiter(generation)) as source:
        async for _, part in source:
            assert isinstance(part, TextDelta)
            parts.append(part.text)
    assert parts[0] + "".join(text for _, text in outlet.texts) + parts[1] == "The quick brown fox"
    assert generation.usage(0).completion_tokens == len(words)
    assert sum(num_tokens for _, num_tokens, _ in noted) == len(words)


async def test_a_stop_string_ends_what_an_outlet_takes() -> None:
    script = Script([*encode("The quick brown fox"), EOS])
    generation = await start(FakeEngineClient([script]), await completion(stop=["own"]))
    outlet = Taken(takes_text=False)
    generation.give_to(outlet)
    end = (await read(generation))[0]
    assert end.text.startswith("T")
    assert (end.finish_reason, end.stop_reason) == ("stop", "own")
    whole = "The quick br"
    assert sorted(whole) == sorted(end.text + "".join(text for _, text in outlet.texts))


async def test_a_closed_outlet_leaves_everything_to_the_reader() -> None:
    generation = await start(
        FakeEngineClient([Script([*encode("The quick"), EOS])]), await completion()
    )
    outlet = Taken()
    outlet.is_open = False
    generation.give_to(outlet)
    assert (await read(generation))[0].text == "The quick"
    assert outlet.texts == []
