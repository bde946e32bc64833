"""No kind of end comes before `min_tokens`, over a real engine and a tiny model."""

from typing import Any

import pytest

from tests.app.api.answers import post, summed
from tests.app.api.server import COMPLETIONS, completion_body
from tests.app.text.tokenizers import chatml_tokenizer
from tests.app.with_engine.reference import PROMPT
from tests.fakes.inline_engine import InlineEngineClient

MIN, MAX = 10, 24
DRAWN: list[dict[str, Any]] = [{"temperature": 0}, {"n": 3, "seed": 5}]
KINDS = [*DRAWN, {"n": 3, "use_beam_search": True}]
STREAM = pytest.mark.parametrize("stream", [False, True])


async def choices_of(client: InlineEngineClient, **fields: Any) -> list[dict[str, Any]]:
    options = {"max_tokens": MAX, "return_token_ids": True, "skip_special_tokens": False}
    answer = await post(client, COMPLETIONS, completion_body(prompt=PROMPT, **options, **fields))
    return summed(answer) if fields.get("stream") else list(answer["choices"])


def text_of(ids: list[int]) -> str:
    pieces = chatml_tokenizer().vocabulary.pieces
    return b"".join(pieces[token] for token in ids).decode(errors="replace")


async def ends(client: InlineEngineClient, kind: dict[str, Any]) -> list[dict[str, Any]]:
    """Stop strings and stop tokens of which each choice holds one early and one late."""
    ids = [choice["token_ids"] for choice in await choices_of(client, **kind, ignore_eos=True)]
    letters = [c for part in ids for c in (text_of(part[:4])[:1], text_of(part[MIN:])[-4:-3])]
    stops = [letter for letter in dict.fromkeys(letters) if letter != "\ufffd"]
    tokens = [token for part in ids for token in (part[2], part[MIN + 5])]
    return [{"stop": stops[:4]}, {"stop_token_ids": tokens}]


@STREAM
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_ends_a_choice_early(
    kind: dict[str, Any], stream: bool, client: InlineEngineClient
) -> None:
    for end in await ends(client, kind):
        # by itself the end comes early, but a search may prefer others
        lengths = [len(c["token_ids"]) for c in await choices_of(client, **kind, **end)]
        assert min(lengths) < MIN or "use_beam_search" in kind
        for choice in await choices_of(client, **kind, **end, min_tokens=MIN, stream=stream):
            assert len(choice["token_ids"]) >= MIN


@STREAM
@pytest.mark.parametrize("kind", KINDS)
async def test_the_first_stop_string_that_begins_after_them_ends_it(
    kind: dict[str, Any], stream: bool, client: InlineEngineClient
) -> None:
    stops = (await ends(client, kind))[0]["stop"]
    fields = {"stop": stops, "min_tokens": MIN, "ignore_eos": True, "stream": stream}
    choices = await choices_of(client, **kind, **fields)
    assert "stop" in {choice["finish_reason"] for choice in choices}
    for choice in choices:
        ids = choice["token_ids"]
        whole, start = text_of(ids), len(text_of(ids[:MIN]))
        found = [at for stop in stops if (at := whole.find(stop, start)) >= 0]
        if choice["finish_reason"] == "length":
            assert (found, len(ids), choice["text"]) == ([], MAX, whole)
        else:
            assert choice["stop_reason"] in stops
            assert choice["text"] == whole[: min(found)]
            assert not any(stop in text_of(ids[MIN:-1]) for stop in stops)


async def test_a_stop_string_that_begins_before_them_does_not_count(
    client: InlineEngineClient,
) -> None:
    fields: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    [free] = await choices_of(client, **fields)
    early, later = text_of(free["token_ids"][:MIN]), text_of(free["token_ids"][MIN:])
    fields["stop"] = early[-1] + later[:1]
    [choice] = await choices_of(client, **fields, min_tokens=MIN)
    assert choice["text"].startswith(early + later[:1])
    [choice] = await choices_of(client, **fields)
    assert len(choice["token_ids"]) <= MIN + 1
