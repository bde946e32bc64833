"""What a request asks of the engine."""

from typing import Any

import pytest

from engine.errors import InvalidRequest, PromptTooLong
from engine.types import SamplingParams
from tests.app.api.server import MAX_MODEL_LEN, encode
from tests.app.generation.prepared import Prepared, chat, completion, encoder
from tests.app.text.tokenizers import chatml_tokenizer

VOCAB = len(chatml_tokenizer().vocabulary)


def only_sampling(prepared: Prepared) -> SamplingParams:
    [prompt], _ = prepared
    assert prompt.sampling is not None
    return prompt.sampling


async def test_output_ends_where_the_room_ends() -> None:
    for wanted, length, expected in ((5, 8, 5), (5, MAX_MODEL_LEN - 5, 5), (5, 510, 2)):
        prepared = await completion(prompt=[65] * length, max_tokens=wanted)
        assert only_sampling(prepared).max_tokens == expected


async def test_a_conversation_may_fill_the_context_by_default() -> None:
    prepared = await chat()
    [prompt], _ = prepared
    assert only_sampling(prepared).max_tokens == MAX_MODEL_LEN - len(prompt.ids)
    assert only_sampling(await completion()).max_tokens == 16


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_more_output_than_the_context_holds_is_refused(name: str) -> None:
    fields: dict[str, Any] = {name: MAX_MODEL_LEN}
    await chat(**fields)
    with pytest.raises(PromptTooLong) as caught:
        await chat(**{**fields, name: MAX_MODEL_LEN + 1})
    assert (caught.value.param, caught.value.got) == (name, MAX_MODEL_LEN + 1)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop_token_ids": [3, VOCAB]}, "stop_token_ids[1]"),
        ({"allowed_token_ids": [VOCAB]}, "allowed_token_ids[0]"),
        ({"logit_bias": {str(VOCAB): 1.0}}, "logit_bias"),
    ],
)
async def test_ids_that_are_no_tokens_are_named(fields: dict[str, Any], param: str) -> None:
    for prepare in (completion, chat):
        with pytest.raises(InvalidRequest) as caught:
            await prepare(**fields)
        assert caught.value.param == param


async def test_tokens_that_only_the_tokenizer_knows_do_not_reach_the_engine() -> None:
    """Some published tokenizers have more tokens than the embedding has rows."""
    for prepare, name in ((completion, "prompt"), (chat, "messages")):
        [prompt], _ = await prepare()
        ids = prompt.ids.tolist()
        last = ids.index(max(ids))
        with pytest.raises(InvalidRequest) as caught:
            await prepare(encoder(vocab_size=ids[last]))
        assert caught.value.param == f"{name}[{last}]"


async def test_each_prompt_has_its_name_and_its_text_if_it_was_one() -> None:
    prompts, _ = await completion(prompt=["The", "fox"], echo=True)
    assert [(p.name, p.ids.tolist(), "".join(p.parts or ())) for p in prompts] == [
        ("prompt[0]", encode("The"), "The"),
        ("prompt[1]", encode("fox"), "fox"),
    ]
    [prompt], _ = await completion(prompt=[5, 6], echo=True)
    assert (prompt.name, prompt.ids.tolist(), prompt.parts) == ("prompt", [5, 6], None)
    [prompt], _ = await completion(prompt="fox")
    assert prompt.parts is None


async def test_a_conversation_ends_with_the_beginning_of_the_answer_where_it_is_wanted() -> None:
    asked = "<|im_start|>user\nThe quick<|im_end|>\n"
    [open_turn], _ = await chat()
    assert open_turn.ids.tolist() == encode(f"{asked}<|im_start|>assistant\n")
    [closed], _ = await chat(add_generation_prompt=False)
    assert closed.ids.tolist() == encode(asked)


async def test_an_answer_begins_a_text_and_a_completion_goes_on_with_one() -> None:
    _, of_chat = await chat()
    assert of_chat.text.starts_text
    _, of_completion = await completion()
    assert not of_completion.text.starts_text


async def test_the_wishes_for_the_text_are_kept() -> None:
    _, options = await completion(
        stop=["a", "b"],
        stop_token_ids=[7],
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        logprobs=0,
    )
    text = options.text
    assert (text.stops, text.stop_token_ids) == (("a", "b"), frozenset({7}))
    assert (text.include_stop, text.skip_special, text.num_logprobs) == (True, False, 0)
    _, options = await completion()
    text = options.text
    assert (text.include_stop, text.skip_special, text.num_logprobs) == (False, True, None)


@pytest.mark.parametrize(
    ("fields", "choices", "candidates"),
    [
        ({"n": 2}, 2, 2),
        ({"n": 2, "best_of": 3}, 2, 3),
        # all would be equal
        ({"n": 2, "best_of": 3, "temperature": 0}, 2, 2),
        # a search ranks by itself
        ({"n": 2, "best_of": 3, "use_beam_search": True}, 2, 2),
    ],
)
async def test_candidates_are_made_only_where_they_are_ranked(
    fields: dict[str, Any], choices: int, candidates: int
) -> None:
    _, options = await completion(**fields)
    assert (options.num_choices, options.num_candidates) == (choices, candidates)
    assert options.is_search == fields.get("use_beam_search", False)


async def test_only_a_search_follows_stop_strings_in_the_engine() -> None:
    search = await completion(stop="fox", use_beam_search=True)
    assert only_sampling(search).stop_pattern is not None
    assert only_sampling(await completion(stop="fox")).stop_pattern is None
    assert only_sampling(await completion(use_beam_search=True)).stop_pattern is None


async def test_scores_of_the_prompt_are_asked_for_while_it_is_continued() -> None:
    echoed = await completion(echo=True, logprobs=2)
    assert only_sampling(echoed).prompt_logprobs == 2
    assert only_sampling(await completion(logprobs=2)).prompt_logprobs is None
    assert only_sampling(await chat(prompt_logprobs=3)).prompt_logprobs == 3


async def test_a_prompt_that_is_only_scored_is_made_to_end_in_its_last_token() -> None:
    prepared = await completion(prompt=[5, 6, 7], echo=True, logprobs=2, max_tokens=0)
    _, options = prepared
    assert options.is_scoring
    sampling = only_sampling(prepared)
    assert (sampling.allowed_token_ids, sampling.prompt_logprobs) == ((7,), 2)
    # it may fill the context
    await completion(prompt=[5] * MAX_MODEL_LEN, echo=True, logprobs=2, max_tokens=0)


@pytest.mark.parametrize("fields", [{"prompt": [5, 6]}, {"prompt": [5], "logprobs": 2}])
async def test_nothing_is_asked_of_the_engine_where_there_is_nothing_to_score(
    fields: dict[str, Any],
) -> None:
    [prompt], _ = await completion(echo=True, max_tokens=0, **fields)
    assert prompt.sampling is None
