"""Which tokens of a text may reach the engine, and how many."""

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given as given_by
from hypothesis import settings
from hypothesis import strategies as st

from app.generation.request.cut import Cut
from app.limits import MAX_BAD_SEQUENCES
from app.protocol.chat.messages import Message
from app.text.tokenizer import Tokenizer
from engine.errors import InvalidRequest, PromptTooLong
from engine.types import IntColumn, int32
from tests.app.api.server import MAX_MODEL_LEN, encode
from tests.app.generation.prepared import encoder
from tests.app.text.tokenizers import CHATML, byte_level_backend, chatml_tokenizer, llama2_tokenizer

VOCAB = len(chatml_tokenizer().vocabulary)


class Watched(Tokenizer):
    """Remembers the texts that it encoded, and the threads that asked for it."""

    def __init__(self) -> None:
        super().__init__(byte_level_backend(), {}, CHATML)
        self.texts: list[str] = []
        self.threads: list[threading.Thread] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> IntColumn:
        self.texts.append(text)
        self.threads.append(threading.current_thread())
        return super().encode(text, add_special_tokens=add_special_tokens)

    def encode_rendered(self, rendered: str, *, add_special_tokens: bool = False) -> IntColumn:
        self.texts.append(rendered)
        return super().encode_rendered(rendered, add_special_tokens=add_special_tokens)


async def test_prompts_keep_their_order_whether_text_or_ids() -> None:
    prompts: list[tuple[str, str | list[int]]] = [("a", "The quick"), ("b", [5, 6]), ("c", "fox")]
    encoded = await encoder().encode(prompts, add_special_tokens=True)
    assert [ids.tolist() for ids in encoded] == [encode("The quick"), [5, 6], encode("fox")]


async def test_special_tokens_are_added_where_they_are_wanted() -> None:
    tokenizer = llama2_tokenizer()
    for wanted in (True, False):
        prompts = [("prompt", "the dog")]
        [ids] = await encoder(tokenizer).encode(prompts, add_special_tokens=wanted)
        assert ids == tokenizer.encode("the dog", add_special_tokens=wanted)
        assert ids == await encoder(tokenizer).tokenize("the dog", add_special_tokens=wanted)


async def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="has no tokens") as caught:
        await encoder().encode([("prompt[0]", "")], add_special_tokens=False)
    assert caught.value.param == "prompt[0]"


@pytest.mark.parametrize(("ids", "at"), [([3, VOCAB], 1), ([-1, 3], 0), ([0, 10**30], 1)])
def test_the_first_id_that_is_no_token_is_named(ids: list[int], at: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encoder().check_ids("field", ids)
    assert caught.value.param == f"field[{at}]"


def test_every_id_below_the_vocabulary_is_a_token() -> None:
    encoder().check_ids("field", [0, VOCAB - 1])
    encoder().check_ids("field", [])
    encoder().check_keys("field", ["0", str(VOCAB - 1)])
    with pytest.raises(InvalidRequest) as caught:
        encoder().check_keys("field", ["0", str(VOCAB)])
    assert caught.value.param == "field"


@pytest.mark.parametrize("min_output", [0, 1])
async def test_a_prompt_must_leave_room_for_the_output(min_output: int) -> None:
    prompts, longest = encoder(), MAX_MODEL_LEN - min_output
    assert prompts.room("prompt", int32([5] * longest), min_output=min_output) == min_output
    for given in ([5] * longest, "\t" * longest):
        fits: list[tuple[str, str | list[int]]] = [("prompt", given)]
        await prompts.encode(fits, add_special_tokens=True, min_output=min_output)
    with pytest.raises(PromptTooLong) as caught:
        prompts.room("prompt", int32([5] * (longest + 1)), min_output=min_output)
    assert (caught.value.limit, caught.value.got) == (MAX_MODEL_LEN, longest + 1)
    too_long: list[tuple[str, str | list[int]]] = [("prompt", [5] * (longest + 1))]
    with pytest.raises(PromptTooLong):
        await prompts.encode(too_long, add_special_tokens=True, min_output=min_output)


async def test_a_text_that_is_too_long_in_any_case_is_not_tokenised() -> None:
    tokenizer = Watched()
    text = "a" * (MAX_MODEL_LEN * tokenizer.vocabulary.longest_piece)
    prompts = encoder(tokenizer)
    with pytest.raises(PromptTooLong):
        await prompts.encode([("a", "short"), ("b", text)], add_special_tokens=True)
    message = Message(role="user", content=text, name=None, tool_call_id=None)
    with pytest.raises(PromptTooLong) as caught:
        await prompts.encode_chat([message])
    assert caught.value.param == "messages"
    with pytest.raises(PromptTooLong):
        await prompts.tokenize(text + "a", add_special_tokens=True)
    assert tokenizer.texts == []


# few characters for each token, so that their number shows nothing
DENSE = "x7 y " * MAX_MODEL_LEN


async def test_a_text_of_too_many_tokens_is_not_tokenised() -> None:
    tokenizer = Watched()
    prompts = encoder(tokenizer)
    with pytest.raises(PromptTooLong, match="prompt has at least") as caught:
        await prompts.encode([("prompt", DENSE)], add_special_tokens=True)
    assert caught.value.param == "prompt"
    with pytest.raises(PromptTooLong, match="messages has at least") as caught:
        await prompts.encode_chat(dense_messages(), min_output=1)
    assert caught.value.param == "messages"
    assert tokenizer.texts == []


async def test_messages_that_are_only_counted_may_be_longer_than_the_context() -> None:
    assert len(await encoder().encode_chat(dense_messages())) > MAX_MODEL_LEN
    cut = Cut(num_tokens=9)
    assert len(await encoder().encode_chat(dense_messages(), cut=cut, min_output=1)) == 9


@pytest.mark.parametrize("min_output", [0, 1])
@given_by(text=st.text(max_size=60) | st.text(alphabet="ab 7\n.", max_size=60))
@settings(max_examples=15)
def test_what_fits_is_not_refused(min_output: int, text: str) -> None:
    tokenizer = chatml_tokenizer()
    message = Message(role="user", content=text, name=None, tool_call_id=None)
    num_chat_tokens = len(tokenizer.encode_chat([message.for_template()]))
    chat = encoder(tokenizer, max_model_len=num_chat_tokens + min_output)
    ids = asyncio.run(chat.encode_chat([message], min_output=min_output))
    assert len(ids) == num_chat_tokens
    if num_tokens := len(tokenizer.encode(text)):
        prompts = encoder(tokenizer, max_model_len=num_tokens + min_output)
        given_text: list[tuple[str, str | list[int]]] = [("prompt", text)]
        asyncio.run(prompts.encode(given_text, add_special_tokens=True, min_output=min_output))


def dense_messages() -> list[Message]:
    return [Message(role="user", content="x7 y ", name=None, tool_call_id=None)] * MAX_MODEL_LEN


async def test_prompts_behind_one_that_is_too_long_are_not_tokenised() -> None:
    tokenizer = Watched()
    prompts: list[tuple[str, Any]] = [("a", "\t" * MAX_MODEL_LEN), ("b", "short")]
    with pytest.raises(PromptTooLong):
        await encoder(tokenizer).encode(prompts, add_special_tokens=True)
    assert tokenizer.texts == ["\t" * MAX_MODEL_LEN]


async def test_a_long_text_is_tokenised_beside_the_event_loop() -> None:
    tokenizer = Watched()
    prompts = encoder(tokenizer, max_model_len=10**6)
    for num_characters in (4096, 4097):
        await prompts.encode([("prompt", "a" * num_characters)], add_special_tokens=True)
    here = threading.current_thread()
    assert [thread is here for thread in tokenizer.threads] == [True, False]


async def test_a_text_that_is_only_counted_may_be_empty() -> None:
    assert len(await encoder().tokenize("", add_special_tokens=True)) == 0


async def test_bad_words_are_meant_with_and_without_a_space_in_front() -> None:
    words = await encoder().encode_bad_words(["quick", " fox", "quick", " "])
    expected = {tuple(encode(text)) for text in ("quick", " quick", "fox", " fox", " ")}
    assert set(words) == expected
    assert len(words) == len(expected)


async def test_bad_words_that_the_model_cannot_say_are_left_out() -> None:
    words = await encoder().encode_bad_words(["<|im_end|>", "a"])
    largest = max(max(word) for word in words)
    known = tuple(word for word in words if max(word) < largest)
    assert known
    assert await encoder(vocab_size=largest).encode_bad_words(["<|im_end|>", "a"]) == known


async def test_too_many_bad_words_are_refused() -> None:
    half = MAX_BAD_SEQUENCES // 2
    assert len(await encoder().encode_bad_words([f"w{i}" for i in range(half)])) == 2 * half
    with pytest.raises(InvalidRequest) as caught:
        await encoder().encode_bad_words([f"w{i}" for i in range(half + 1)])
    assert caught.value.param == "bad_words"
    with pytest.raises(InvalidRequest, match="tokens in 2 sequences"):
        await encoder().encode_bad_words(["\t" * 699 + "x"])


class _Short(Watched):
    """Has a token for each word."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> IntColumn:
        super().encode(text, add_special_tokens=add_special_tokens)
        return int32([1] * len(text.split()))

    def at_least(self, text: str, enough: int) -> int:
        return 0


@pytest.mark.parametrize(
    ("word", "share"), [("a ", 0.2), ("word ", 0.6), ("internationally ", 1.6)]
)
async def test_of_a_text_that_is_far_too_long_only_the_beginning_is_tokenised(
    word: str, share: float
) -> None:
    tokenizer, limit = _Short(), 4096
    text = word * (16 * limit // len(word))
    prompts = encoder(tokenizer, max_model_len=limit)
    with pytest.raises(PromptTooLong) as caught:
        await prompts.encode([("prompt", text)], add_special_tokens=True)
    assert sum(map(len, tokenizer.texts)) < share * len(text)
    assert (caught.value.param, caught.value.limit) == ("prompt", limit)
    assert limit <= caught.value.got <= len(text.split())


async def test_a_long_text_of_few_tokens_is_encoded_whole() -> None:
    tokenizer = _Short()
    text = "internationalisation " * (MAX_MODEL_LEN // 2)
    for ids in (
        (await encoder(tokenizer).encode([("prompt", text)], add_special_tokens=True))[0],
        await encoder(tokenizer).tokenize(text, add_special_tokens=True),
    ):
        assert len(ids) == MAX_MODEL_LEN // 2
